use super::*;

#[test]
fn a_spool_ends_at_its_bound_and_gives_its_room_back() {
    let disk = Disk::default();
    let mut spool = disk.spool().unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..MAX_SPOOL_BYTES / piece.len() as u64 {
        spool.push(&piece);
    }
    assert!(!spool.ended);
    spool.push(b"more");
    spool.push(b"again");
    assert_eq!(spool.bytes(), MAX_SPOOL_BYTES);
    assert_eq!(spool.read(MAX_SPOOL_BYTES - 1, 10).unwrap(), b"x");
    drop(spool);
    assert_eq!(disk.0.load(Ordering::Relaxed), 0);
}

#[test]
fn when_all_room_is_taken_a_spool_keeps_nothing() {
    let disk = Disk::default();
    disk.0.store(ALL - 2, Ordering::Relaxed);
    let mut spool = disk.spool().unwrap();
    spool.push(b"abc");
    assert_eq!(spool.read(0, 10).unwrap(), b"ab");
    disk.0.store(2, Ordering::Relaxed);
}
