use super::*;
use crate::fixture;

fn row(episode: &str, row: u32, turn: Option<u32>, of: Range<usize>) -> RowSpan {
    RowSpan {
        episode: episode.to_owned(),
        row,
        turn,
        advantage: Some(0.5),
        from: of.start,
        to: of.end,
    }
}

fn turn(turn: u32, row: u32, sampled_length: usize) -> TurnRecord {
    TurnRecord {
        row,
        sampled_length,
        ..fixture::turn(turn, "ls", "")
    }
}

/// Token `n` has the values n, n + 100, n + 200.
fn columns(tokens: usize) -> Columns {
    let from = |first: usize| (first..first + tokens).map(|n| n as f32).collect();
    Columns {
        logprobs: from(0),
        entropies: from(100),
        ratios: from(200),
        marks: (0..tokens).map(|n| n as u8).collect(),
    }
}

/// Reads an episode's part as a reader of a remote file does.
fn read(file: &[u8], episode: &str, turns: &[TurnRecord]) -> Result<BTreeMap<u32, TurnStats>, TokenStatsError> {
    let end = Head::bytes(&file[..PREFIX as usize])?;
    let head = Head::read(&file[..end as usize])?;
    let Some(span) = head.episode(episode) else {
        return Ok(BTreeMap::new());
    };
    let part = |range: &Range<u64>| file[range.start as usize..range.end as usize].to_vec();
    span.by_turn(&std::array::from_fn(|column| part(&span.bytes[column])), turns)
}

#[test]
fn an_episode_is_read_by_its_own_bytes_and_divided_among_its_turns() {
    let rows = vec![
        row("a", 0, None, 0..4),
        row("b", 0, None, 4..9),
        row("b", 1, None, 9..11),
    ];
    let file = encode(rows, &columns(11)).unwrap();
    let turns = [turn(0, 0, 2), turn(1, 1, 2), turn(2, 0, 3)];
    let found = read(&file, "b", &turns).unwrap();
    assert_eq!(found[&0].columns.logprobs, [4.0, 5.0]);
    assert_eq!(found[&2].columns.entropies, [106.0, 107.0, 108.0]);
    assert_eq!(found[&1].columns.ratios, [209.0, 210.0]);
    assert_eq!(found[&1].columns.marks, [9, 10]);
    assert_eq!(found[&1].advantage, Some(0.5));
    assert!(read(&file, "c", &turns).unwrap().is_empty());
    let (rows, all) = decode(&file).unwrap();
    assert_eq!((rows.len(), all), (3, columns(11)));
    let head = Head::read(&file[..Head::bytes(&file[..PREFIX as usize]).unwrap() as usize]).unwrap();
    assert_eq!(head.rows(), rows);
    assert!(decode(&file[..file.len() - 1]).is_err());
}

#[test]
fn rows_of_single_turns_belong_to_these_turns_only() {
    let rows = vec![row("a", 0, Some(2), 0..3), row("a", 0, Some(0), 3..5)];
    let file = encode(rows, &columns(5)).unwrap();
    let found = read(&file, "a", &[turn(0, 0, 2), turn(1, 0, 9), turn(2, 0, 3)]).unwrap();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(found[&2].columns.logprobs, [0.0, 1.0, 2.0]);
    assert_eq!(found[&0].columns.logprobs, [3.0, 4.0]);
}

#[test]
fn a_file_that_does_not_fit_its_episode_is_refused() {
    let file = encode(vec![row("a", 0, None, 0..2)], &columns(2)).unwrap();
    let longer = read(&file, "a", &[turn(0, 0, 3)]).unwrap_err();
    assert!(longer.to_string().contains("its turns have more"), "{longer}");
    let beyond = encode(vec![row("a", 0, None, 0..3)], &columns(2)).unwrap();
    assert!(read(&beyond, "a", &[]).unwrap_err().to_string().contains("0..3 of 2"));
    let uneven = Columns {
        marks: vec![0],
        ..columns(2)
    };
    let uneven = encode(Vec::new(), &uneven).unwrap();
    assert!(read(&uneven, "a", &[]).unwrap_err().to_string().contains("marks is U8"));
    assert!(Head::bytes(&u64::MAX.to_le_bytes()).is_err());
    assert!(Head::bytes(&[1, 2]).is_err());
    assert!(Head::read(b"\x02\0\0\0\0\0\0\0{}").is_err());
}
