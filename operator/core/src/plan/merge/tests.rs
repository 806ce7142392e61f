use super::*;

fn of(texts: &[&str]) -> String {
    let values: Vec<Value> = texts
        .iter()
        .map(|text| serde_yaml_ng::from_str(text).unwrap())
        .collect();
    serde_yaml_ng::to_string(&merged(&values)).unwrap().trim().to_owned()
}

#[test]
fn what_is_equal_is_shown_once_and_what_differs_side_by_side() {
    assert_eq!(of(&["{a: 1, b: x}", "{a: 1, b: y}"]), "a: 1\nb: x | y");
    assert_eq!(of(&["[p, q]", "[p, r]"]), "- p\n- q | r");
}

#[test]
fn what_one_has_and_another_lacks_is_not_lost() {
    assert_eq!(of(&["{a: 1}", "{}"]), "a: 1 | none");
    assert_eq!(of(&["[p]", "[p, q]"]), "'- p | - p, - q'");
}
