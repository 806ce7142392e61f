//! The observation of the policy after an action.

use grpo_chat_template::{ChatMessage, Role};

/// Messages that follow an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub messages: Vec<ChatMessage>,
    /// The policy has submitted its work.
    pub submitted: bool,
}

impl Observation {
    /// An observation as one user message.
    pub fn said(text: String, submitted: bool) -> Self {
        Self {
            messages: vec![ChatMessage::new(Role::User, text)],
            submitted,
        }
    }

    /// The texts of all messages, for people.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.messages.iter().map(|message| message.content.as_str()).collect();
        texts.join("\n\n")
    }
}
