use super::*;
use serde_json::json;

#[test]
fn what_an_image_lacks_is_named_with_the_image_and_the_remedy() {
    let modules = ImageContents::Modules(["pytest", "numpy"].map(str::to_owned).into());
    assert_eq!(check("i:1", &["numpy", "pytest"], &modules), Ok(()));
    let lacking = check("i:1", &["numpy", "pytest", "sklearn", "torch"], &modules).unwrap_err();
    assert_eq!(
        lacking.to_string(),
        "field imports: image i:1 lacks sklearn, torch; add them to the image (recipe: docs/images/kodcode/Dockerfile)"
    );
    let bare = ImageContents::Without(vec!["python3".into(), "git".into()]);
    let lacking = check("i:1", &[], &bare).unwrap_err().to_string();
    assert!(
        lacking.starts_with("field image: image i:1 lacks python3, git, "),
        "{lacking}"
    );
}

#[test]
fn a_row_without_names_names_nothing() {
    assert_eq!(named(&json!({"imports": ["b", "a"]})), ["b", "a"]);
    assert!(named(&json!({"imports": "a"})).is_empty() && named(&json!({})).is_empty());
}
