//! The Python behaviour that templates expect: they were written for Jinja2 as configured by the transformers library.
//!
//! minijinja's own `tojson` escapes for HTML, writes no spaces, and writes large floats in full. `tojson` here writes
//! like `json.dumps(x, ensure_ascii=False)`, as in that library; floats print like Python's `repr`. Two known
//! differences remain: a list or an object printed without `tojson` has double quotes, and an integer beyond 64 bits
//! becomes a float.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// An environment for one template, `chat`. `globals` are names and their texts.
pub fn environment(template: String, globals: Vec<(&'static str, String)>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    for (name, text) in globals {
        environment.add_global(name, text);
    }
    environment.add_template_owned("chat", template)?;
    Ok(environment)
}

fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    match float(value) {
        Some(number) => out.write_str(&repr(number)).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    match float(value) {
        Some(number) => Value::from(repr(number)),
        None if value.kind() == ValueKind::String => value.clone(),
        None => Value::from(value.to_string()),
    }
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
