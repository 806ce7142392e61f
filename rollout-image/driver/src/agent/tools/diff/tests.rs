use super::*;
use proptest::prelude::*;

#[test]
fn a_change_is_shown_with_three_lines_around_it() {
    let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
    let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
    let shown = "--- original\n+++ current\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n";
    assert_eq!(unified(old, new), shown);
    assert_eq!(unified(old, old), "");
}

#[test]
fn ranges_are_written_as_patch_reads_them() {
    assert_eq!(unified("", "a\n"), "--- original\n+++ current\n@@ -0,0 +1 @@\n+a\n");
    assert_eq!(unified("a\n", ""), "--- original\n+++ current\n@@ -1 +0,0 @@\n-a\n");
}

#[test]
fn a_last_line_without_an_end_does_not_run_into_the_next() {
    assert_eq!(unified("a", "b"), "--- original\n+++ current\n@@ -1 +1 @@\n-a\n+b\n");
}

#[test]
fn texts_too_long_to_match_are_compared_by_their_ends() {
    let lines = |middle: &str| format!("{}{middle}{}", "same\n".repeat(2000), "end\n".repeat(2000));
    let diff = unified(&lines("old\n"), &lines("new\nnew\n"));
    assert!(diff.contains("@@ -1998,7 +1998,8 @@"), "{diff}");
    assert!(diff.contains("-old\n+new\n+new\n"), "{diff}");
}

/// Applies a diff that this module wrote.
fn applied(old: &str, diff: &str) -> String {
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let (mut out, mut at) = (String::new(), 0);
    for line in diff.split_inclusive('\n').skip(2) {
        if let Some(head) = line.strip_prefix("@@ -") {
            let (from, _) = head.split_once(' ').unwrap();
            let (from, count) = from.split_once(',').unwrap_or((from, "1"));
            let from: usize = from.parse().unwrap();
            let from = if count == "0" { from } else { from - 1 };
            out.push_str(&old[at..from].concat());
            at = from;
            continue;
        }
        let (sign, text) = line.split_at(1);
        match sign {
            "+" => out.push_str(text),
            _ => {
                assert_eq!(old[at], text);
                at += 1;
                out.push_str(if sign == " " { text } else { "" });
            }
        }
    }
    out.push_str(&old[at..].concat());
    out
}

proptest! {
    #[test]
    fn a_diff_leads_from_one_text_to_the_other(
        old in prop::collection::vec(0..6u8, 0..300),
        new in prop::collection::vec(0..6u8, 0..300),
    ) {
        let text = |lines: &[u8]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let (old, new) = (text(&old), text(&new));
        prop_assert_eq!(applied(&old, &unified(&old, &new)), new);
    }
}
