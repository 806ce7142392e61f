use super::*;

fn line(kind: &str, name: &str) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": {"metadata": {"name": name}}})).into()
}

fn names(waiting: &VecDeque<Told>) -> Vec<&str> {
    waiting
        .iter()
        .map(|told| told.object.as_deref().unwrap_or("-"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn events_of_other_objects_change_places_and_none_passes_a_bookmark() {
    let mut waiting = VecDeque::new();
    take(&mut waiting, line("ADDED", "a"), true);
    take(&mut waiting, line("MODIFIED", "a"), true);
    assert_eq!(names(&waiting), ["a", "a"]);
    take(&mut waiting, line("ADDED", "b"), true);
    assert_eq!(names(&waiting), ["a", "b", "a"]);
    take(&mut waiting, line("BOOKMARK", ""), true);
    take(&mut waiting, line("ADDED", "c"), true);
    assert_eq!(names(&waiting), ["a", "b", "a", "-", "c"]);
    let first = waiting.pop_front().unwrap();
    again(&mut waiting, first, 4);
    assert_eq!(names(&waiting), ["b", "a", "a", "-", "c"]);
    assert!(
        waiting
            .iter()
            .zip(waiting.iter().skip(1))
            .all(|(one, next)| one.due <= next.due)
    );
}
