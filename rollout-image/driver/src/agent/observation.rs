//! What the policy is told after an action.

use grpo_chat_template::{ChatMessage, Role};

/// Messages that follow an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub messages: Vec<ChatMessage>,
    /// The policy has submitted its work.
    pub submitted: bool,
}

impl Observation {
    /// What a user says.
    pub fn said(text: String, submitted: bool) -> Self {
        Self {
            messages: vec![ChatMessage::new(Role::User, text)],
            submitted,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.messages.iter().map(|message| message.content.as_str()).collect();
        texts.join("\n\n")
    }
}
