//! A store in a folder of a volume.
//!
//! A file is written beside its name, synced, and put in place by a rename, or by a hard link if the name must be new;
//! then its folder is synced. So two writers of one name cannot both believe that they created it.

use super::error::{StoreError, access};
use super::{Listed, LocalCopy, Store, at};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How often a folder is emptied again that others write to meanwhile.
const EMPTIED_AGAIN: usize = 1000;

/// A folder of a mounted volume, or a copy of one.
#[derive(Debug)]
pub struct LocalStore {
    files: LocalFileSystem,
    dir: PathBuf,
}

impl LocalStore {
    /// The folder `root` (such as `namespace/name`) of the volume mounted at `mount`; created if missing.
    pub fn open(mount: &Path, root: &str) -> Result<Self, StoreError> {
        let plain = !root.is_empty() && root.split('/').all(crate::paths::is_plain_name);
        if !plain {
            return Err(StoreError::Root { path: root.to_owned() });
        }
        Self::make(&mount.join(root))
    }

    /// A folder, created if missing.
    pub fn make(dir: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(|source| StoreError::Open {
            dir: dir.to_owned(),
            source: source.into(),
        })?;
        Self::existing(dir)
    }

    /// An existing folder.
    pub fn existing(dir: &Path) -> Result<Self, StoreError> {
        let files = LocalFileSystem::new_with_prefix(dir).map_err(|source| StoreError::Open {
            dir: dir.to_owned(),
            source: source.into(),
        })?;
        Ok(Self {
            files: files.with_fsync(true),
            dir: dir.to_owned(),
        })
    }

    fn file(&self, doing: &'static str, path: &str) -> Result<PathBuf, StoreError> {
        let file = self.files.path_to_filesystem(&at(path));
        file.map_err(|source| access(doing, path, source))
    }

    /// Runs a file operation on a thread that may block on a disk.
    async fn on_disk(
        &self,
        doing: &'static str,
        path: &str,
        act: impl FnOnce(PathBuf) -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let file = self.file(doing, path)?;
        let done = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime
                .spawn_blocking(move || act(file))
                .await
                .map_err(io::Error::other),
            Err(_) => Ok(act(file)),
        };
        done.flatten().map_err(|source| {
            let source = Box::new(source);
            access(doing, path, object_store::Error::Generic { store: "local", source })
        })
    }
}

#[async_trait]
impl Store for LocalStore {
    fn objects(&self) -> &dyn ObjectStore {
        &self.files
    }

    fn location(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// One write, without a copy of the existing bytes.
    async fn append(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let append = move |file: PathBuf| {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = fs::OpenOptions::new().create(true).append(true).open(file)?;
            file.write_all(&bytes)
        };
        self.on_disk("adding to", path, append).await
    }

    /// A volume lists in no order. This opens the folders in order, and only those that have files after `after`, so a
    /// page does not read the whole folder.
    async fn list_after(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Listed>, StoreError> {
        let after = after.unwrap_or_default();
        let mut first = Vec::new();
        // In descending order: the next entry is the last one.
        let mut open = vec![Entry::folder(at(folder))];
        while first.len() < most
            && let Some(entry) = open.pop()
        {
            if let Some(bytes) = entry.bytes {
                first.push(Listed { path: entry.key, bytes });
                continue;
            }
            let listed = self.files.list_with_delimiter(Some(&entry.path)).await;
            let listed = listed.map_err(|source| access("listing", folder, source))?;
            let folders = listed.common_prefixes.into_iter().map(Entry::folder);
            let files = listed.objects.into_iter().map(|meta| Entry {
                key: meta.location.to_string(),
                path: meta.location,
                bytes: Some(meta.size),
            });
            let from = open.len();
            open.extend(folders.chain(files).filter(|entry| entry.has_paths_after(after)));
            open[from..].sort_by(|a, b| b.key.cmp(&a.key));
        }
        Ok(first)
    }

    /// Also syncs the folder, which the object store does not do.
    async fn delete(&self, path: &str) -> Result<(), StoreError> {
        match self.files.delete(&at(path)).await {
            Ok(()) => self.on_disk("deleting", path, |file| sync_above(&file)).await,
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(access("deleting", path, source)),
        }
    }

    /// Also removes the folder itself.
    async fn delete_folder(&self, folder: &str) -> Result<(), StoreError> {
        let remove = |folder: PathBuf| match remove_all(&folder) {
            Ok(()) => sync_above(&folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        self.on_disk("deleting", folder, remove).await
    }

    /// The file itself.
    async fn local_copy(&self, path: &str) -> Result<LocalCopy, StoreError> {
        match self.length(path).await? {
            Some(_) => Ok(LocalCopy::of_volume(self.file("reading", path)?)),
            None => Err(StoreError::Missing { path: path.to_owned() }),
        }
    }
}

/// A file or a folder of a listing in order.
struct Entry {
    /// The file's path; of a folder, the beginning of the paths in it.
    key: String,
    path: StorePath,
    /// `None` for a folder.
    bytes: Option<u64>,
}

impl Entry {
    fn folder(path: StorePath) -> Self {
        Self {
            key: format!("{path}/"),
            path,
            bytes: None,
        }
    }

    fn has_paths_after(&self, after: &str) -> bool {
        self.key.as_str() > after || (self.bytes.is_none() && after.starts_with(&self.key))
    }
}

/// A writer whose claim is being withdrawn may put its last files into the folder while it is emptied, so the folder is
/// emptied again.
fn remove_all(folder: &Path) -> io::Result<()> {
    for _ in 0..EMPTIED_AGAIN {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
    }
    fs::remove_dir_all(folder)
}

fn sync_above(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    match fs::File::open(folder) {
        Ok(folder) => folder.sync_all(),
        // Its folder was removed too.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
