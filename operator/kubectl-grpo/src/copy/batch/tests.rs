use super::*;

fn file(path: &str, bytes: u64) -> Wanted {
    Wanted {
        path: path.to_owned(),
        bytes,
        sha256: None,
    }
}

#[test]
fn small_files_with_paths_that_the_server_takes_are_fetched_together() {
    let limits = BulkLimits {
        files: 10,
        path_bytes: 5,
    };
    for (limits, file, accepted) in [
        (Some(limits), file("a/b/c", LARGEST), true),
        (Some(limits), file("a/b/c", LARGEST + 1), false),
        (Some(limits), file("a/b/cd", 1), false),
        (Some(BulkLimits { files: 0, ..limits }), file("a", 1), false),
        (None, file("a", 1), false),
    ] {
        assert_eq!(Batch::new(limits).accepts(&file), accepted, "{limits:?} {file:?}");
    }
}

/// The sizes of the batches of so many files.
fn sizes(limit: usize, files: usize, bytes: u64) -> Vec<usize> {
    let limits = BulkLimits {
        files: limit,
        path_bytes: 5,
    };
    let files = vec![file("a", bytes); files];
    let (mut batch, mut sizes) = (Batch::new(Some(limits)), Vec::new());
    for file in &files {
        if batch.is_full_for(file) {
            sizes.push(batch.take().len());
        }
        batch.add(file);
    }
    sizes.push(batch.take().len());
    sizes
}

#[test]
fn a_batch_ends_at_the_first_of_its_limits() {
    for (limit, files, bytes, expected) in [
        (3, 7, 1, vec![3, 3, 1]),
        (5000, 1001, 1, vec![1000, 1]),
        (5000, 33, LARGEST, vec![32, 1]),
        (3, 0, 1, vec![0]),
    ] {
        assert_eq!(sizes(limit, files, bytes), expected, "{limit} {files} {bytes}");
    }
}

#[test]
fn files_are_asked_for_up_to_their_listed_length() {
    let (a, b) = (file("a", 3), file("b", 0));
    let files = request(&[&a, &b]).files;
    let asked: Vec<_> = files.iter().map(|at| (at.path.as_str(), at.from, at.to)).collect();
    assert_eq!(asked, [("a", 0, Some(3)), ("b", 0, Some(0))]);
}
