use super::*;

fn push(spool: &mut Spool, bytes: &[u8]) {
    spool.push(bytes);
    if let Some(write) = spool.write() {
        spool.wrote(Some(write.carry_out().unwrap()));
    }
}

#[test]
fn a_spool_ends_at_its_bound_and_gives_its_room_back() {
    let disk = Disk::default();
    let mut spool = disk.spool();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..MAX_SPOOL_BYTES / piece.len() as u64 {
        push(&mut spool, &piece);
    }
    assert!(!spool.ended);
    push(&mut spool, b"more");
    push(&mut spool, b"again");
    assert_eq!(spool.bytes(), MAX_SPOOL_BYTES);
    assert_eq!(spool.piece(MAX_SPOOL_BYTES - 1, 10).read().unwrap(), b"x");
    drop(spool);
    assert_eq!(disk.0.load(Ordering::Relaxed), 0);
}

#[test]
fn when_all_room_is_taken_a_spool_keeps_nothing() {
    let disk = Disk::default();
    disk.0.store(ALL - 2, Ordering::Relaxed);
    let mut spool = disk.spool();
    push(&mut spool, b"abc");
    assert_eq!(spool.piece(0, 10).read().unwrap(), b"ab");
    disk.0.store(2, Ordering::Relaxed);
}

#[test]
fn what_is_not_written_yet_can_be_read() {
    let mut spool = Disk::default().spool();
    push(&mut spool, b"abc");
    spool.push(b"def");
    assert_eq!(spool.piece(1, 10).read().unwrap(), b"bc");
    assert_eq!(spool.piece(4, 10).read().unwrap(), b"ef");
}

#[test]
fn a_disk_that_takes_nothing_ends_the_spool_and_gives_its_room_back() {
    let disk = Disk::default();
    let mut spool = disk.spool();
    push(&mut spool, b"abc");
    spool.push(b"def");
    spool.wrote(None);
    spool.push(b"ghi");
    assert_eq!((spool.bytes(), disk.0.load(Ordering::Relaxed)), (3, 3));
    assert!(spool.write().is_none());
}
