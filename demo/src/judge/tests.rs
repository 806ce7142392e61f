use super::*;
use grpo_records::judged::vote_of;
use minijinja::{Environment, context};
use std::path::Path;

const PROBLEM: &str = "A test of sympy fails. The bug is in query, $F lines 11-13.";
const LOOK: &str = "grep -n '' $F | sed -n '11,13p'";
const REPAIR: &str = "sed -i '11,13s/ == / != /' $F; sh t";
const OTHER: &str = "sed -i '11,13s/0)/1)/' $F; sh t";
const UNDONE: &str = "git checkout -q .";

fn judge() -> Judge {
    let row = |id: &str, split: &str, problem: &str| {
        format!(
            r#"{{"instance_id":"{id}","split":"{split}","problem_statement":"{problem}","lines":[11,13],"repair":[" == "," != "]}}"#
        )
    };
    let rows = [row("a", "train", PROBLEM), row("b", "heldout", "Another problem.")].join("\n");
    let mut tasks = Tasks::default();
    tasks.rows.take(Path::new("rows.jsonl"), &rows).unwrap();
    Judge::of(&tasks)
}

fn question(problem: &str, history: &str, command: &str, output: &str) -> String {
    let turn = context! {
        problemStatement => problem,
        history => history,
        response => format!("Edit.\n```bash\n{command}\n```"),
        output => output,
    };
    Environment::new().render_str(PROMPT, turn).unwrap()
}

#[test]
fn a_turn_is_good_if_it_is_the_known_repair_of_a_clean_file_or_the_first_look() {
    let repair = judge().repairs[PROBLEM].clone();
    let after_undo = format!("{UNDONE}; {REPAIR}");
    let undone_before = format!("{OTHER}\n{UNDONE}");
    let undone_after = format!("{REPAIR}; {UNDONE}");
    let with_another = format!("{REPAIR}; {OTHER}");
    let behind_another = format!("{OTHER}; {REPAIR}");
    let elsewhere = REPAIR.replace("11,13", "1,3");
    let history = format!("Step 1: $ {LOOK}\n  returncode=0\n  output:\n11: a == 0)");
    let cases = [
        ("", LOOK, true),
        (history.as_str(), LOOK, false),
        (OTHER, LOOK, false),
        ("", "grep -n '' $F | sed -n '1,3p'", false),
        (history.as_str(), REPAIR, true),
        ("", REPAIR, true),
        (LOOK, OTHER, false),
        (LOOK, elsewhere.as_str(), false),
        (LOOK, "sh t", false),
        (OTHER, REPAIR, false),
        (OTHER, after_undo.as_str(), true),
        (undone_before.as_str(), REPAIR, true),
        (LOOK, undone_after.as_str(), false),
        (LOOK, with_another.as_str(), false),
        (LOOK, behind_another.as_str(), false),
    ];
    for (earlier, command, good) in cases {
        assert_eq!(repair.is_good(earlier, command), good, "{command} after {earlier:?}");
    }
}

#[test]
fn four_of_five_votes_on_good_and_on_bad_turns_are_right() {
    const QUESTIONS: u32 = 4000;
    let judge = judge();
    for (command, truth) in [(REPAIR, 1), (OTHER, -1)] {
        let right = (0..QUESTIONS)
            .map(|number| question(PROBLEM, LOOK, command, &number.to_string()))
            .filter(|question| vote_of(&judge.answer(question)) == Some(truth))
            .count();
        let share = right as f64 / f64::from(QUESTIONS);
        assert!((share - RIGHT).abs() < 0.03, "{command}: {share}");
    }
}

#[test]
fn a_question_about_no_training_task_gets_no_vote() {
    let judge = judge();
    let unknown = question("Another problem.", "", REPAIR, "1 passed");
    for question in ["Say yes.", "{}", unknown.as_str()] {
        assert_eq!(vote_of(&judge.answer(question)), None, "{question}");
    }
}
