use super::*;

fn passed(limit: usize, pieces: &[&[u8]]) -> (String, u64) {
    let mut output = Output::new(limit);
    for piece in pieces {
        output.push(piece);
    }
    output.text()
}

#[test]
fn what_fits_is_kept_whole() {
    assert_eq!(passed(10, &[b"01234", b"56789"]), ("0123456789".into(), 0));
    assert_eq!(passed(0, &[]), (String::new(), 0));
}

#[test]
fn of_too_much_head_and_tail_are_kept_and_the_rest_is_counted() {
    assert_eq!(passed(4, &[b"abcdefgh"]), ("ab\n[4 bytes omitted]\ngh".into(), 4));
    assert_eq!(
        passed(4, &[b"a", b"bcd", b"e", b"fgh"]),
        ("ab\n[4 bytes omitted]\ngh".into(), 4)
    );
    assert_eq!(passed(0, &[b"abc"]), ("\n[3 bytes omitted]\n".into(), 3));
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    assert_eq!(passed(10, &[b"a\xffb"]).0, "a\u{fffd}b");
}

#[test]
fn a_character_that_arrives_in_two_pieces_is_one() {
    assert_eq!(passed(10, &[b"\xc3", b"\xa4"]).0, "ä");
}

/// The output in parts of `count` bytes, each with its position.
fn in_parts(output: &Output, count: usize) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut next = 0;
    while next < output.written() {
        let (from, piece) = output.part(next, count);
        let data = piece.read().unwrap();
        next = from + data.len() as u64;
        parts.push((from, String::from_utf8(data).unwrap()));
    }
    parts
}

#[test]
fn what_was_omitted_can_be_had_in_parts() {
    for pieces in [
        &["abcdefghij"][..],
        &["a", "bcd", "ef", "ghij"],
        &["ab", "cdefghi", "j"],
    ] {
        let mut output = Output::spooled(4, Disk::default());
        for piece in pieces {
            output.push(piece.as_bytes());
            if let Some(write) = output.write() {
                output.wrote(Some(write.carry_out().unwrap()));
            }
        }
        let whole: String = in_parts(&output, 3).into_iter().map(|(_, text)| text).collect();
        assert_eq!(whole, "abcdefghij", "{pieces:?}");
        let (from, piece) = output.part(99, 3);
        assert_eq!((from, piece.read().unwrap()), (10, Vec::new()));
    }
}

#[test]
fn where_nothing_is_spooled_a_part_begins_with_what_is_kept() {
    let mut output = Output::new(4);
    output.push(b"abcdefgh");
    assert_eq!(in_parts(&output, 9), [(0, "ab".into()), (6, "gh".into())]);
    assert_eq!((output.end(9), output.end(1)), ("gh".into(), "h".into()));
}

#[tokio::test]
async fn who_waits_for_more_hears_of_it_and_of_the_end() {
    let printed = Printed::new(Output::new(10));
    let waiting = tokio::spawn({
        let printed = printed.clone();
        async move {
            printed.reaches(0).await;
            let first = printed.part("e", 0, 10).await;
            printed.reaches(first.next).await;
            (first.data, printed.part("e", first.next, 10).await.ended)
        }
    });
    tokio::task::yield_now().await;
    printed.push(b"abc");
    tokio::task::yield_now().await;
    printed.end();
    assert_eq!(waiting.await.unwrap(), (b"abc".to_vec(), true));
}
