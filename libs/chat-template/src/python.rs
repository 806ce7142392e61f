//! The Python behaviour that templates expect: they were written for Jinja2 as configured by the transformers library.
//!
//! minijinja's own `tojson` escapes for HTML, writes no spaces, and writes large floats in full. `tojson` here writes
//! like `json.dumps(x, ensure_ascii=False)`, as in that library; floats, lists and objects print like Python's `repr`.
//! `none` is not iterable. The library's tags around an answer's tokens, `generation` and `endgeneration`, have no
//! effect here. Two known differences remain: a list or an object joined with `~` has double quotes, and an integer
//! beyond 64 bits becomes a float.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// The template of prompts without tools, by transformers' name for it.
pub const DEFAULT: &str = "default";
/// The template of prompts with tools.
pub const TOOL_USE: &str = "tool_use";

/// An environment whose one template serves all prompts. `globals` are names and their texts.
pub fn environment(template: String, globals: Vec<(&'static str, String)>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_test("iterable", iterable);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    for (name, text) in globals {
        environment.add_global(name, text);
    }
    for name in [DEFAULT, TOOL_USE] {
        set_template(&mut environment, name, &template)?;
    }
    Ok(environment)
}

/// Sets one of the two templates.
pub fn set_template(environment: &mut Environment<'static>, name: &'static str, text: &str) -> Result<(), Error> {
    environment.add_template_owned(name, without_generation_tags(text))
}

/// A template with plain blocks in place of `{% generation %}` and `{% endgeneration %}`. Variables that are set within
/// them stay local, as in the library.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_start();
        let tags = [("generation", "with"), ("endgeneration", "endwith")];
        let replaced = tags.into_iter().find_map(|(name, block)| {
            let after = inner.strip_prefix(name)?;
            let end = after.trim_start();
            let end = end.strip_prefix(['-', '+']).unwrap_or(end);
            end.starts_with("%}").then_some((block, after))
        });
        rest = match replaced {
            Some((block, after)) => {
                out.push_str(&tag[..tag.len() - inner.len()]);
                out.push_str(block);
                after
            }
            None => tag,
        };
    }
    out.push_str(rest);
    out
}

fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match python_text(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    match python_text(value) {
        Some(text) => Value::from(text),
        None if value.kind() == ValueKind::String => value.clone(),
        None => Value::from(value.to_string()),
    }
}

/// minijinja's test takes `none` for an empty list. Templates check it before the length, which `none` does not have.
fn iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Python's text of a float, a list or an object; `None` for other values, which minijinja writes in the same way.
fn python_text(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let mut text = String::new();
            write_repr(value, &mut text);
            Some(text)
        }
        _ => float(value).map(repr),
    }
}

/// A value as Python's `repr` writes it.
fn write_repr(value: &Value, out: &mut String) {
    let items = || value.try_iter().into_iter().flatten().enumerate();
    let separator = |at: usize| if at > 0 { ", " } else { "" };
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (at, item) in items() {
                out.push_str(separator(at));
                write_repr(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in items() {
                out.push_str(separator(at));
                write_repr(&key, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        _ => out.push_str(&float(value).map_or_else(|| value.to_string(), repr)),
    }
}

/// A text as Python's `repr` writes it, except that all code points from U+0100 stay unchanged: marks
/// ([`super::literal`]) are made of one.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            _ if character == quote => out.extend(['\\', quote]),
            _ => out.push(character),
        }
    }
    out.push(quote);
}

fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        let message = "tojson(ensure_ascii=true) is not supported; leave it out";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let json = Json {
        indent,
        depth: 0,
        filled: false,
    };
    let written = value.serialize(&mut Serializer::with_formatter(&mut bytes, json));
    let unusable = |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    written.map_err(|error| unusable(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| unusable(&error))?;
    Ok(Value::from_safe_string(text))
}

fn float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok())?
}

/// A float as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from 1e16.
fn repr(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        // Not finite.
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// Python's separators: `", "` and `": "`, or line breaks if there is an indent.
struct Json {
    indent: Option<usize>,
    depth: usize,
    /// The list or object that ends next is not empty; an empty one stays on one line.
    filled: bool,
}

impl Json {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{:1$}", "", indent * self.depth),
            None => Ok(()),
        }
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(if self.indent.is_some() { b"," } else { b", " })?;
        }
        self.line(writer)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }
}

impl Formatter for Json {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(repr(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
