//! The edit itself: reads the file, replaces the only occurrence, writes the file, shows the change.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::Answer;
use crate::arguments::Arguments;
use crate::codec::{Codec, CodecError};
use crate::text::{self, Text};

/// The maximum size of a file, in bytes. The script reads files of any size; the sandbox's memory limit would then kill
/// it.
pub const LONGEST_FILE: u64 = 64 << 20;

const NOT_FOUND: u8 = 2;
const SEVERAL: u8 = 3;
const OTHER: u8 = 1;

/// Maximum names tried for the new file.
const NAMES_TRIED: u32 = 100;

/// Why the edit failed, or was not completed.
enum Failed {
    /// The text does not occur exactly once; the status says which case.
    Occurrences(u8, Vec<u8>),
    Undecodable,
    System(io::Error, Text),
    /// In Python's words.
    Unexpected(String),
}

/// Carries out the command line.
pub fn edit(arguments: &Arguments) -> Answer {
    let failed = match replaced(arguments) {
        Ok(out) => {
            return Answer {
                out,
                ..Answer::default()
            };
        }
        Err(failed) => failed,
    };
    let (status, err) = match failed {
        Failed::Occurrences(status, what) => (status, what),
        Failed::Undecodable => {
            let (path, encoding) = (arguments.path.shown(), arguments.encoding.shown());
            let parts = [
                b"Failed to read ",
                path.as_slice(),
                b" with encoding ",
                &encoding,
                b". Try --encoding.\n",
            ];
            (OTHER, parts.concat())
        }
        Failed::System(error, path) => {
            let code = error.raw_os_error().unwrap_or_default();
            // Without the error number that Rust appends.
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            let repr = Text::from(path.repr().as_str()).shown();
            (
                OTHER,
                [format!("OS error: [Errno {code}] {words}: ").as_bytes(), &repr, b"\n"].concat(),
            )
        }
        Failed::Unexpected(what) => (OTHER, format!("Unexpected error: {what}\n").into_bytes()),
    };
    Answer {
        err,
        status,
        ..Answer::default()
    }
}

fn replaced(arguments: &Arguments) -> Result<Vec<u8>, Failed> {
    let path = PathBuf::from(arguments.path.name());
    let system = |error| Failed::System(error, arguments.path.clone());
    let bytes = read(&path).map_err(system)?.ok_or_else(|| {
        Failed::Unexpected(format!(
            "the file has more than {LONGEST_FILE} bytes; use another tool for it"
        ))
    })?;
    let encoding = String::from_utf8_lossy(&arguments.encoding.shown()).into_owned();
    let codec = Codec::named(&encoding).map_err(codec_failed)?;
    let text = codec.decode(&bytes).map(line_ends_unified).map_err(codec_failed)?;
    let (searched, old, new) = match arguments.expand_tabs {
        false => (text.clone(), arguments.old.clone(), arguments.new.clone()),
        true => {
            let size = i32::try_from(arguments.tab_size)
                .map_err(|_| Failed::Unexpected("Python int too large to convert to C int".into()))?;
            let expanded = |text: &Option<Text>| match text {
                Some(text) => tabs_expanded(text, size).map(Some),
                None => Err(Failed::Unexpected("'list' object has no attribute 'expandtabs'".into())),
            };
            (
                tabs_expanded(&text, size)?,
                expanded(&arguments.old)?,
                expanded(&arguments.new)?,
            )
        }
    };
    let old = old.ok_or_else(|| Failed::Unexpected("must be str, not list".into()))?;
    let found = occurrences(&searched.0, &old.0);
    let at = match found.as_slice() {
        [at] => *at,
        [] => {
            let path = arguments.path.shown();
            let parts = [
                b"No replacement performed: old_str did not appear verbatim in ",
                path.as_slice(),
                b".\n",
            ];
            return Err(Failed::Occurrences(NOT_FOUND, parts.concat()));
        }
        several => {
            let lines: Vec<usize> = several.iter().map(|at| line_of(&searched.0, *at)).collect();
            let what = format!(
                "No replacement performed. Multiple occurrences of old_str at lines {lines:?}. Please ensure it is unique.\n"
            );
            return Err(Failed::Occurrences(SEVERAL, what.into_bytes()));
        }
    };
    // The shown line is that of the text as given, before tabs were expanded, if the file has it.
    let as_given = (arguments.old.as_ref())
        .filter(|_| arguments.expand_tabs)
        .and_then(|old| first(&text.0, &old.0));
    let line = as_given.map_or_else(|| line_of(&searched.0, at), |at| line_of(&text.0, at));
    let new = new.ok_or_else(|| Failed::Unexpected("can only concatenate str (not \"list\") to str".into()))?;
    let content = Text([&searched.0[..at], &new.0, &searched.0[at + old.0.len()..]].concat());
    let shown = snippet(&content, line as i128, arguments.context_lines, &new);
    let path_shown = arguments.path.bytes();
    if arguments.dry_run {
        return Ok([b"[DRY-RUN] Would edit ", path_shown.as_slice(), b"\n", &shown, b"\n"].concat());
    }
    if !arguments.backup_suffix.0.is_empty() {
        let backup = text::path(&Text(
            [arguments.path.0.as_slice(), &arguments.backup_suffix.0].concat(),
        ));
        let bytes = codec.encode(&text).map_err(codec_failed)?;
        fs::write(PathBuf::from(backup.name()), bytes).map_err(|error| Failed::System(error, backup))?;
    }
    write(&path, || codec.encode(&content).map_err(codec_failed))?;
    let parts = [
        b"The file ",
        path_shown.as_slice(),
        b" has been edited successfully.\n",
        &shown,
        b"\nReview the changes and make sure they are as expected.\n",
    ];
    Ok(parts.concat())
}

fn codec_failed(error: CodecError) -> Failed {
    match error {
        CodecError::Decode => Failed::Undecodable,
        CodecError::Said(what) => Failed::Unexpected(what),
    }
}

/// The file's bytes. `None` if the file is too large.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    // Python refuses a folder when it opens it.
    if file.metadata()?.is_dir() {
        return Err(io::Error::from_raw_os_error(EISDIR));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= LONGEST_FILE).then_some(bytes))
}

/// "Is a directory".
const EISDIR: i32 = 21;

/// Converts line ends of other systems to `\n`, also in the written file.
fn line_ends_unified(text: Text) -> Text {
    if !text.0.contains(&b'\r') {
        return text;
    }
    let mut unified = Vec::with_capacity(text.0.len());
    let mut bytes = text.0.into_iter().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b'\r' {
            bytes.next_if_eq(&b'\n');
        }
        unified.push(if byte == b'\r' { b'\n' } else { byte });
    }
    Text(unified)
}

/// Expands tabs to the next multiple of `size`, counted in code points from the beginning of a line.
fn tabs_expanded(text: &Text, size: i32) -> Result<Text, Failed> {
    let size = usize::try_from(size).unwrap_or(0);
    let (mut expanded, mut column) = (Vec::with_capacity(text.0.len()), 0);
    for byte in &text.0 {
        match byte {
            b'\t' if size == 0 => {}
            b'\t' => {
                let spaces = size - column % size;
                if (expanded.len() + spaces) as u64 > 4 * LONGEST_FILE {
                    return Err(Failed::Unexpected("the file is too long with its tabs expanded".into()));
                }
                expanded.resize(expanded.len() + spaces, b' ');
                column += spaces;
            }
            b'\n' | b'\r' => {
                expanded.push(*byte);
                column = 0;
            }
            byte => {
                expanded.push(*byte);
                // Continuation bytes of a code point have no column.
                column += usize::from(byte & 0xC0 != 0x80);
            }
        }
    }
    Ok(Text(expanded))
}

/// The positions of `wanted`, without overlaps.
fn occurrences(text: &[u8], wanted: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| first(rest, wanted)) {
        if wanted.is_empty() {
            break;
        }
        found.push(from + at);
        from += at + wanted.len();
    }
    found
}

fn first(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let Some((head, _)) = wanted.split_first() else {
        return Some(0);
    };
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.iter().position(|byte| byte == head)?;
        if text[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// The line number, from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    text[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The numbered lines around the change.
fn snippet(content: &Text, line: i128, context: i128, new: &Text) -> Vec<u8> {
    let lines: Vec<&[u8]> = content.0.split(|byte| *byte == b'\n').collect();
    let more = new.0.iter().filter(|byte| **byte == b'\n').count() as i128;
    let start = line.saturating_sub(context).max(1);
    let end = line
        .saturating_add(context)
        .saturating_add(more)
        .min(lines.len() as i128);
    let width = end.to_string().len();
    let shown = (start..=end).map(|number| {
        let line = Text(lines[number as usize - 1].to_vec()).bytes();
        [format!("{number:>width$} | ").as_bytes(), &line].concat()
    });
    shown.collect::<Vec<_>>().join(&b'\n')
}

/// Writes the file atomically: to a new file beside it, then renamed into its place. A link is replaced by the file.
fn write(path: &Path, content: impl FnOnce() -> Result<Vec<u8>, Failed>) -> Result<(), Failed> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let failed_at = |path: &Path| {
        let path = Text::of(path.as_os_str());
        move |error| Failed::System(error, path)
    };
    let mode = fs::metadata(path).map_err(failed_at(path))?.permissions();
    let (mut file, beside) = new_file(folder)?;
    let written = content().and_then(|bytes| {
        let written = file.write_all(&bytes).and_then(|()| {
            let kept = fs::Permissions::from_mode(mode.mode() & 0o7777);
            // If the mode cannot be kept, the file is the caller's alone, as the script leaves it.
            let _ = file.set_permissions(kept);
            file.sync_all()?;
            fs::rename(&beside, path)
        });
        written.map_err(failed_at(&beside))
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Creates a new file in `folder`.
fn new_file(folder: &Path) -> Result<(File, PathBuf), Failed> {
    let mut tried = 0;
    loop {
        let random = RandomState::new().hash_one(tried);
        let name = folder.join(format!("tmp{:08x}", random as u32));
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name);
        tried += 1;
        match opened {
            Ok(file) => return Ok((file, name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_TRIED => {}
            Err(error) => return Err(Failed::System(error, Text::of(name.as_os_str()))),
        }
    }
}
