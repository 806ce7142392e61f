//! The observation of the policy after an action.

use grpo_chat_template::{ChatMessage, Role};
use grpo_records::ObservedMessage;
use grpo_records::chat::BETWEEN;

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
        texts.join(BETWEEN)
    }

    /// The messages within [`Observation::text`], for the record; none for one message of the user.
    pub fn recorded(&self) -> Vec<ObservedMessage> {
        if let [message] = &self.messages[..]
            && message.role == Role::User
        {
            return Vec::new();
        }
        let messages = self.messages.iter().map(|message| ObservedMessage {
            role: message.role.word().to_owned(),
            tool_call_id: message.tool_call_id.clone(),
            bytes: message.content.len(),
        });
        messages.collect()
    }
}
