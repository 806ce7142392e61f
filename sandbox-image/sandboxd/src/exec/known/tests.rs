use super::*;
use crate::output::Output;

fn run_ends(known: &mut Known, id: usize, bytes: usize) {
    let printed = Printed::new(Output::new(bytes));
    printed.push(&vec![b'x'; bytes]);
    let run = Arc::new(Run {
        id: id.to_string(),
        printed,
        orders: mpsc::channel(1).0,
        ended: watch::channel(None).1,
    });
    known.begins(run.clone());
    known.ends(&run);
}

#[test]
fn results_are_forgotten_by_number_and_by_size_but_not_that_they_ran() {
    let mut known = Known::default();
    for id in 0..REMEMBERED + 10 {
        run_ends(&mut known, id, 1);
    }
    assert!(matches!(known.entries["9"], Entry::Forgotten));
    assert!(matches!(known.entries["10"], Entry::Kept(_)));
    run_ends(&mut known, 1000, REMEMBERED_BYTES);
    assert!(matches!(known.entries["10"], Entry::Forgotten));
    assert!(matches!(known.entries["1000"], Entry::Kept(_)));
    assert_eq!(known.kept_bytes, REMEMBERED_BYTES);
    for id in 2000..2000 + REMEMBERED_IDS {
        run_ends(&mut known, id, 1);
    }
    assert_eq!((known.entries.len(), known.kept.len()), (REMEMBERED_IDS, REMEMBERED));
}
