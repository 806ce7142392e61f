use super::*;
use proptest::prelude::*;

/// Points of entries: how many curves each has, and of which part of a run.
fn points(entries: &[(usize, bool)]) -> Vec<Point> {
    let of_entry = |(entry, (curves, is_trainer)): (usize, &(usize, bool))| {
        let part = if *is_trainer { "trainer" } else { "rollout" };
        let points = (0..*curves).map(move |curve| Point {
            entry: entry as u64 + 1,
            curve: format!("{part}/{curve}"),
            // Also entries of one second and one step stay apart.
            step: entry as u32 / 3,
            at: 100 + entry as i64 / 3,
            value: (entry * 10 + curve) as f64,
        });
        points.collect::<Vec<_>>()
    };
    entries.iter().enumerate().flat_map(of_entry).collect()
}

fn all(added: &Added) -> Vec<(i64, Vec<(String, Value)>)> {
    added.rows.iter().map(|row| (row.number, row.values.clone())).collect()
}

proptest! {
    #[test]
    fn rows_do_not_depend_on_how_many_entries_come_at_a_time(
        entries in prop::collection::vec((0_usize..4, any::<bool>()), 0..20),
        cuts in prop::collection::vec(0_usize..20, 0..5),
    ) {
        let points = points(&entries);
        let mut at_once = Rows::since(50);
        let whole = at_once.add(&points);
        let mut in_pages = Rows::since(50);
        let (mut rows, mut newest, mut curves) = (Vec::new(), BTreeMap::new(), Vec::new());
        let pages = points.chunk_by(|a, b| a.entry == b.entry || !cuts.contains(&(b.entry as usize)));
        for page in pages {
            let added = in_pages.add(page);
            rows.extend(all(&added));
            newest.extend(added.newest);
            curves.extend(added.curves);
        }
        prop_assert_eq!(&rows, &all(&whole));
        prop_assert_eq!((newest, curves), (whole.newest, whole.curves));
        prop_assert!(rows.iter().zip(0..).all(|((number, _), expected)| *number == expected));
        let filled = entries.iter().filter(|(curves, _)| *curves > 0).count();
        prop_assert_eq!(rows.len(), filled, "each entry with points is a row");
    }
}

#[test]
fn a_row_has_the_values_of_an_entry_its_step_and_its_times() {
    let added = Rows::since(90).add(&points(&[(2, true)]));
    let (number, values) = all(&added).remove(0);
    let shown: Vec<String> = values.iter().map(|(name, value)| format!("{name} {value}")).collect();
    assert_eq!(
        (number, shown.join(", ").as_str()),
        (
            0,
            "trainer/0 0.0, trainer/1 1.0, step 0, _timestamp 100, _runtime 10, _step 0"
        )
    );
    assert_eq!(added.curves, ["trainer/0", "trainer/1"]);
}
