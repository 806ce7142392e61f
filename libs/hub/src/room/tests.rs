#![allow(clippy::unwrap_used)]

use super::*;

/// A cache on a file system of fixed size: the free space follows from the files in it.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A snapshot of 100 bytes that was last used this many days ago.
    fn snapshot(&self, name: &str, commit: &str, days: u64) -> PathBuf {
        let (repository, ago) = (self.repository(name), Duration::from_secs(days * 24 * 3600));
        let folder = repository.join(SNAPSHOTS).join(commit);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.safetensors"), [0; 100]).unwrap();
        mark((repository.clone(), commit.to_owned())).unwrap();
        let used = fs::File::options().write(true).open(repository.join(USED).join(commit));
        used.unwrap().set_modified(SystemTime::now() - ago).unwrap();
        folder
    }

    fn part(&self, name: &str, part: &str) -> PathBuf {
        let folder = self.repository(name).join(PARTS);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(part), [0; 100]).unwrap();
        folder.join(part)
    }

    /// Frees space for `needed` bytes for `a`, on a file system of 500 bytes.
    fn make(&self, wanted: &[PathBuf], needed: u64) -> Result<(), HubError> {
        let free = |cache: &Path| Ok(500_u64.saturating_sub(size(cache)));
        make(self.0.path(), &self.repository("a"), wanted, needed, free)
    }
}

fn size(folder: &Path) -> u64 {
    let of = |path: PathBuf| match path.is_dir() {
        true => size(&path),
        false => path.metadata().unwrap().len(),
    };
    entries(folder).into_iter().map(of).sum()
}

#[test]
fn nothing_goes_while_there_is_room() {
    let cache = Cache::new();
    let (old, part) = (cache.snapshot("b", "1", 100), cache.part("a", "left"));
    cache.make(&[], 300).unwrap();
    assert!(old.exists() && part.exists());
}

#[test]
fn leftovers_go_first_then_what_was_not_used_for_longest() {
    let cache = Cache::new();
    let (oldest, older) = (cache.snapshot("b", "1", 100), cache.snapshot("a", "2", 50));
    let (left, wanted) = (cache.part("a", "left"), cache.part("a", "wanted"));
    cache.make(std::slice::from_ref(&wanted), 150).unwrap();
    assert!(!left.exists() && wanted.exists() && oldest.exists() && older.exists());
    cache.make(std::slice::from_ref(&wanted), 250).unwrap();
    assert!(!oldest.exists() && older.exists());
    cache.make(std::slice::from_ref(&wanted), 400).unwrap();
    assert!(!older.exists() && wanted.exists());
}

#[test]
fn what_is_used_stays_and_the_refusal_says_what_to_do() {
    let cache = Cache::new();
    let used = cache.snapshot("b", "1", 29);
    let message = cache.make(&[], 450).unwrap_err().to_string();
    assert!(used.exists());
    assert!(message.contains("450") && message.contains("400"), "{message}");
}

#[test]
fn a_snapshot_whose_repository_is_being_downloaded_stays() {
    let cache = Cache::new();
    let old = cache.snapshot("b", "1", 100);
    let lock = try_lock(cache.repository("b").join("lock")).unwrap();
    cache.make(&[], 450).unwrap_err();
    assert!(old.exists());
    drop(lock);
    cache.make(&[], 450).unwrap();
    assert!(!old.exists());
}

#[test]
fn unfinished_files_of_another_repository_go_unless_its_download_is_under_way() {
    let cache = Cache::new();
    let part = cache.part("b", "left");
    let lock = try_lock(cache.repository("b").join("lock")).unwrap();
    cache.make(&[], 450).unwrap_err();
    assert!(part.exists());
    drop(lock);
    cache.make(&[], 450).unwrap();
    assert!(!part.exists());
}

#[test]
fn a_file_system_says_how_much_is_free() {
    assert!(free(Path::new("/")).is_ok());
}
