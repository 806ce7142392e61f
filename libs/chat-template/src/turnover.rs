//! The ids around answers, for rebuilt histories: with turns left out, or answers without their reasoning.

use super::{ANSWER, ChatMessage, ChatTemplate, PromptShape, Role, TemplateError};
use minijinja::{Value, context};
use std::sync::Arc;

/// The token that ends the reasoning of an answer.
const REASONING_ENDS: &str = "</think>";
const REASONING_BEGINS: &str = "<think>";
const CALL: &str = "<tool_call>";

/// The template's ids before an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turnover {
    /// Before an answer to be sampled. Every prompt ends with these ids.
    pub opens: Vec<u32>,
    /// Before an earlier answer, which is shown without its reasoning.
    pub header: Vec<u32>,
}

impl ChatTemplate {
    /// The ids before an answer.
    pub fn turnover(&self, shape: &PromptShape) -> Result<Arc<Turnover>, TemplateError> {
        self.turnovers[usize::from(shape.thinking)].get(&shape.tools, || {
            let (tools, thinking) = (self.tools(shape)?, shape.thinking);
            let user = || context! { role => "user", content => "-" };
            let before = self.render_before(&tools, thinking, vec![user()], false)?;
            let prompt = self.render_before(&tools, thinking, vec![user()], true)?;
            let answered = vec![user(), context! { role => "assistant", content => ANSWER }, user()];
            let answered = self.render_before(&tools, thinking, answered, false)?;
            let header = answered
                .split_once(ANSWER)
                .and_then(|(shown, _)| after(shown, &before).ok());
            let header = header.ok_or_else(|| {
                TemplateError::Shape("shows an answer otherwise when a user's message follows on it".into())
            })?;
            let turnover = Turnover {
                opens: self.literals.encode(after(&prompt, &before)?)?,
                header: self.literals.encode(header)?,
            };
            let apart = [self.literals.encode(&before)?, turnover.opens.clone()].concat();
            match apart == self.literals.encode(&prompt)? {
                true => Ok(Arc::new(turnover)),
                false => Err(TemplateError::Shape(
                    "opens an answer by no tokens of its own, so turns cannot be left out of a history: leave \
                     agent.context.trim out, and set agent.context.thinking: Keep"
                        .into(),
                )),
            }
        })
    }

    /// The ids of a user's message within a history, in place of [`Turnover::opens`]. They end with those ids.
    pub fn interjection(&self, shape: &PromptShape, text: &str) -> Result<Vec<u32>, TemplateError> {
        let tools = self.tools(shape)?;
        let user = context! { role => "user", content => "-" };
        let before = self.render_before(&tools, shape.thinking, vec![user.clone()], false)?;
        let mut messages: Vec<Value> = vec![user];
        messages.extend(self.shown(&[ChatMessage::new(Role::User, text)])?);
        let rendered = self.render_before(&tools, shape.thinking, messages, true)?;
        self.literals.encode(after(&rendered, &before)?)
    }

    /// An answer without its reasoning and the newlines after it. If the reasoning did not end, the answer is returned
    /// whole. The first token that ends reasoning counts, and none behind a call that no reasoning encloses: arguments
    /// of calls may spell it. As `grpo_records::chat::reasoning_of` reads the text.
    pub fn after_reasoning<'a>(&self, ids: &'a [u32]) -> Result<&'a [u32], TemplateError> {
        let id_of = |tag: &str| self.literals.tokenizer().token_to_id(tag);
        let ends = id_of(REASONING_ENDS).ok_or_else(|| {
            TemplateError::Shape(format!(
                "is of a model without a token {REASONING_ENDS}, by which agent.context.thinking: Strip finds its \
                 reasoning: use Keep"
            ))
        })?;
        let Some(at) = ids.iter().position(|id| *id == ends) else {
            return Ok(ids);
        };
        let (begins, call) = (id_of(REASONING_BEGINS), id_of(CALL));
        let mut before = ids[..at].iter().map(|id| Some(*id));
        if before
            .find(|id| *id == begins || *id == call)
            .is_some_and(|id| id == call)
        {
            return Ok(ids);
        }
        let mut rest = &ids[at + 1..];
        while let [first, others @ ..] = rest
            && !self.is_stop(*first)
            && self.text(&[*first])?.trim_start_matches('\n').is_empty()
        {
            rest = others;
        }
        Ok(rest)
    }

    fn is_stop(&self, id: u32) -> bool {
        self.stops.iter().any(|(stop, _)| *stop == id)
    }
}

fn after<'a>(rendered: &'a str, before: &str) -> Result<&'a str, TemplateError> {
    rendered
        .strip_prefix(before)
        .ok_or_else(|| TemplateError::Shape("shows a message otherwise when another one follows on it".into()))
}
