//! Reads an answer with many files ([`grpo_records::look::bulk`]): a line, then the bytes of its file.

use crate::error::Error;
use crate::pods::connection::Pieces;
use bytes::{Bytes, BytesMut};
use grpo_records::look::bulk::BulkLine;

/// A line has a path and a number.
const LONGEST_LINE: usize = 64 << 10;

/// The files of an answer, in the order of the request.
pub struct BulkFiles {
    pieces: Pieces,
    /// Bytes that have arrived and were not returned.
    rest: BytesMut,
    /// Bytes of the current file that were not returned.
    left: u64,
}

impl BulkFiles {
    pub(super) fn of(pieces: Pieces) -> Self {
        Self {
            pieces,
            rest: BytesMut::new(),
            left: 0,
        }
    }

    /// Begins the next file, which is this one; `false` if it does not exist. All bytes of the file before it must have
    /// been read.
    pub async fn begin(&mut self, path: &str) -> Result<bool, Error> {
        let line = self.line().await?;
        let line: BulkLine = serde_json::from_slice(&line).map_err(|error| self.malformed(&error.to_string()))?;
        if line.path() != path {
            return Err(self.malformed(&format!("{} came in place of {path}", line.path())));
        }
        match line {
            BulkLine::File(file) => {
                self.left = file.bytes;
                Ok(true)
            }
            BulkLine::Gone(_) => Ok(false),
        }
    }

    /// `None` after the last piece of the current file.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        while self.rest.is_empty() {
            self.receive().await?;
        }
        let length = self.left.min(self.rest.len() as u64);
        self.left -= length;
        Ok(Some(self.rest.split_to(length as usize).freeze()))
    }

    /// Reads to the end of the answer, after the last file: otherwise the connection takes no further request.
    pub async fn end(mut self) -> Result<(), Error> {
        let mut more = std::mem::take(&mut self.rest).freeze();
        loop {
            if !more.is_empty() {
                return Err(self.malformed("bytes came after the last file"));
            }
            match self.pieces.next().await? {
                Some(piece) => more = piece,
                None => return Ok(()),
            }
        }
    }

    async fn line(&mut self) -> Result<Bytes, Error> {
        loop {
            if let Some(length) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Ok(self.rest.split_to(length + 1).freeze());
            }
            if self.rest.len() > LONGEST_LINE {
                return Err(self.malformed("a line does not end"));
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<(), Error> {
        match self.pieces.next().await? {
            Some(piece) => self.rest.extend_from_slice(&piece),
            None => return Err(self.malformed("it ended before the last file")),
        }
        Ok(())
    }

    fn malformed(&self, why: &str) -> Error {
        self.pieces
            .error(format!("its answer with many files cannot be read: {why}"))
    }
}
