//! CEL rules of the CRDs: the shapes that come back again and again.
//!
//! A rule's message can say which values were found. Fields
//! that may be left out are compared by [`unchanged`], because CEL has no word for "equal or both missing".

use kube::core::{Message, Rule};

/// A rule, and its message, in which CEL expressions stand in braces: `"trainer.nodes is {self.nodes}: ..."`.
///
/// They go through `format`, the one way to write a number that the API server knows the cost of.
pub(crate) fn rule(rule: impl Into<String>, message: &str) -> Rule {
    let mut parts = message.split(['{', '}']);
    let mut text = parts.next().unwrap_or_default().replace('%', "%%");
    let mut values = Vec::new();
    while let (Some(value), Some(after)) = (parts.next(), parts.next()) {
        values.push(value);
        text = text + "%s" + &after.replace('%', "%%");
    }
    if values.is_empty() {
        return Rule::new(rule).message(message);
    }
    Rule {
        message: Some(Message::Expression(format!("'{text}'.format([{}])", values.join(", ")))),
        ..Rule::new(rule)
    }
}

/// A path stays below the folder it is relative to. `field` may be left out.
pub(crate) fn stays_below(field: &str, name: &str) -> Rule {
    rule(
        format!("!has(self.{field}) || !self.{field}.matches('(^|/)[.][.](/|$)')"),
        &format!("{name} is {{self.{field}}}, which leads out of the folder that it is relative to: leave out the .."),
    )
}

/// Of these optional fields exactly one is given.
pub(crate) fn exactly_one(fields: &[&str]) -> Rule {
    let given = |field: &&str| format!("(has(self.{field}) ? 1 : 0)");
    let count: Vec<String> = fields.iter().map(given).collect();
    Rule::new(format!("{} == 1", count.join(" + "))).message(format!("give exactly one of {}", listed(fields)).as_str())
}

/// Of these optional fields at most one is given.
pub(crate) fn at_most_one(fields: &[&str]) -> Rule {
    let given = |field: &&str| format!("(has(self.{field}) ? 1 : 0)");
    let count: Vec<String> = fields.iter().map(given).collect();
    Rule::new(format!("{} <= 1", count.join(" + "))).message(format!("give at most one of {}", listed(fields)).as_str())
}

/// A transition rule: these fields, seen from `self`, stay as they are. A field with a question mark at the end may be
/// left out.
pub(crate) fn immutable(fields: &[&str], message: &str) -> Rule {
    Rule::new(unchanged("self", "oldSelf", fields)).message(message)
}

/// The expression that is true where none of these fields differs.
pub(crate) fn unchanged(new: &str, old: &str, fields: &[&str]) -> String {
    let same = |field: &&str| match field.strip_suffix('?') {
        None => format!("{new}.{field} == {old}.{field}"),
        Some(field) => format!(
            "has({new}.{field}) == has({old}.{field}) && (!has({new}.{field}) || {new}.{field} == {old}.{field})"
        ),
    };
    fields.iter().map(same).collect::<Vec<_>>().join(" && ")
}

/// True where a run is, or is about to be, at rest: what is fixed while it runs may be changed then.
const AT_REST: &str = "self.spec.suspend || oldSelf.spec.suspend || (has(self.status) && has(self.status.phase) && self.status.phase in ['Suspended', 'Failed'])";

/// A transition rule of the whole GrpoRun: these fields of the spec stay as they are while the run is under way.
pub(crate) fn fixed_while_running(fields: &[&str], message: &str) -> Rule {
    fixed_while_running_if("true", fields, message)
}

/// The same of runs for which `condition` holds; it also says whether the fields' parents are there, before and after.
pub(crate) fn fixed_while_running_if(condition: &str, fields: &[&str], message: &str) -> Rule {
    let same = unchanged("self.spec", "oldSelf.spec", fields);
    let applies = match condition {
        "true" => String::new(),
        condition => format!("!({condition}) || "),
    };
    Rule::new(format!("{AT_REST} || {applies}({same})")).message(message)
}

/// `a, b and c`
fn listed(fields: &[&str]) -> String {
    match fields.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
