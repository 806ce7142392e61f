use super::*;
use serde_json::Value;
use std::path::Path;

/// The demo's model with a template that takes a system message at the beginning only, as Qwen3.5's does.
fn strict() -> ChatTemplate {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "generation_config.json"] {
        std::fs::copy(model.join(file), dir.path().join(file)).unwrap();
    }
    let config = std::fs::read(model.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = Value::from(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
         {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
         {{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    );
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTemplate::load(dir.path()).unwrap()
}

fn said(role: Role, text: &str) -> ChatMessage {
    ChatMessage::new(role, text)
}

#[test]
fn messages_with_several_system_messages_are_rendered_with_one() {
    let (template, shape) = (strict(), PromptShape::default());
    let codex = [
        said(Role::System, "Be Codex."),
        said(Role::System, "Never ask."),
        said(Role::User, "Fix it."),
        said(Role::System, "Be brief."),
    ];
    assert!(template.prompt(&shape, &codex).is_err());
    let one = [
        said(Role::System, "Be Codex.\n\nNever ask."),
        said(Role::User, "Fix it."),
        said(Role::User, "Be brief."),
    ];
    let wanted = template.prompt(&shape, &one).unwrap();
    assert_eq!(prompt(&template, &shape, &codex).unwrap(), wanted);
    // What the template takes is rendered as it was sent.
    assert_eq!(prompt(&template, &shape, &one).unwrap(), wanted);
}

#[test]
fn a_system_message_after_an_answer_is_rendered_as_the_users() {
    let (template, shape) = (strict(), PromptShape::default());
    let stop = template.stop_ids().first().copied();
    let late = [said(Role::System, "Be brief.")];
    assert!(template.glue(&shape, stop, &late).is_err());
    let wanted = template.glue(&shape, stop, &[said(Role::User, "Be brief.")]).unwrap();
    assert_eq!(glue(&template, &shape, stop, &late).unwrap(), wanted);
}

#[test]
fn a_refusal_for_another_reason_stays_the_templates() {
    let broken = |_: &[ChatMessage]| Err(TemplateError::Shape("leaves it out".into()));
    for messages in [
        vec![said(Role::User, "Fix it.")],
        vec![said(Role::System, "a"), said(Role::System, "b"), said(Role::User, "c")],
    ] {
        let error = rendered(&messages, true, broken).unwrap_err();
        assert!(error.to_string().contains("leaves it out"), "{error}");
    }
    assert_eq!(
        with_one_system(&[said(Role::System, "a"), said(Role::User, "b")], true),
        None
    );
}
