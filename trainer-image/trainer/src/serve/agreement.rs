//! Agreement of ranks before they continue together. Every rank calls these functions.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use super::Rank;
use crate::error::TrainError;

impl Rank {
    /// The result of `find` on rank 0, on every rank, or the reason of its failure.
    pub(super) fn of_rank_0<T: Serialize + DeserializeOwned>(
        &self,
        doing: &'static str,
        find: impl FnOnce() -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        if !self.is_first() {
            let told: Result<T, String> = serde_json::from_slice(&self.broadcast(Vec::new())?).map_err(unread)?;
            return told.map_err(|why| TrainError::Start(format!("rank 0 ends while {doing}: {why}")));
        }
        let found = self.model.group.busy(doing, find);
        let told = found.as_ref().map_err(ToString::to_string);
        self.broadcast(serde_json::to_vec(&told).map_err(unwritten)?)?;
        found
    }

    /// Broadcasts rank 0's bytes, of any length.
    fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        let mut length = Tensor::from_slice(&[own.len() as i64]);
        self.model.group.broadcast(&mut length, 0)?;
        let mut bytes = own;
        bytes.resize(length.int64_value(&[0]) as usize, 0);
        let mut bytes = Tensor::from_slice(&bytes);
        self.model.group.broadcast(&mut bytes, 0)?;
        Ok(Vec::<u8>::try_from(bytes)?)
    }

    /// This rank's result with a path of the store, if all ranks succeeded; otherwise all fail and name the ranks that
    /// failed.
    pub(super) fn on_all_ranks<T>(&self, path: &str, own: Result<T, TrainError>) -> Result<T, TrainError> {
        let group = &self.model.group;
        if let Err(error) = &own {
            tracing::error!(rank = group.rank(), path, %error, "this rank cannot read what rank 0 has chosen");
        }
        let mut failed = vec![0.0; group.world() as usize];
        failed[group.rank() as usize] = f64::from(u8::from(own.is_err()));
        let failed = self.model.sum(&failed)?;
        let ranks = (0..).zip(failed).filter(|(_, failed)| *failed > 0.0);
        let ranks: Vec<u32> = ranks.map(|(rank, _)| rank).collect();
        match own {
            Ok(_) if !ranks.is_empty() => Err(TrainError::RanksDisagree {
                path: path.to_owned(),
                ranks,
            }),
            own => own,
        }
    }
}

fn unwritten(error: serde_json::Error) -> TrainError {
    TrainError::Start(format!("telling the other ranks: {error}"))
}

fn unread(error: serde_json::Error) -> TrainError {
    TrainError::Start(format!("reading what rank 0 told: {error}"))
}
