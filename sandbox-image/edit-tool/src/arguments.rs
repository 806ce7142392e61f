//! The command line, parsed and refused as by Python's argparse: positions and options in any order, options
//! abbreviated, texts that begin with `-` after `--`.

use crate::Answer;
use crate::text::{Text, path};

const USAGE: &str = include_str!("usage.txt");
const HELP: &str = include_str!("help.txt");
const NAME: &str = "edit_via_str_replace";

/// The exit status for an invalid command line.
const REFUSED: u8 = 2;

/// The longest number, in digits, that Python reads.
const LONGEST_NUMBER: usize = 4300;

/// The parsed command line. A text is `None` if argparse turns a second `--` into an empty list.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub path: Text,
    pub old: Option<Text>,
    pub new: Option<Text>,
    pub context_lines: i128,
    pub encoding: Text,
    pub backup_suffix: Text,
    pub dry_run: bool,
    pub expand_tabs: bool,
    pub tab_size: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    Help,
    ContextLines,
    Encoding,
    BackupSuffix,
    DryRun,
    ExpandTabs,
    TabSize,
}

/// In the order of the help text.
const FLAGS: [(&str, Flag); 8] = [
    ("-h", Flag::Help),
    ("--help", Flag::Help),
    ("--context-lines", Flag::ContextLines),
    ("--encoding", Flag::Encoding),
    ("--backup-suffix", Flag::BackupSuffix),
    ("--dry-run", Flag::DryRun),
    ("--expand-tabs", Flag::ExpandTabs),
    ("--tabsize", Flag::TabSize),
];

impl Flag {
    fn takes_value(self) -> bool {
        matches!(
            self,
            Self::ContextLines | Self::Encoding | Self::BackupSuffix | Self::TabSize
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Help => "-h/--help",
            _ => (FLAGS.iter().find(|(_, flag)| *flag == self)).map_or("", |(name, _)| name),
        }
    }
}

/// The kind of an argument, before its assignment to an option or a position.
#[derive(Debug)]
enum Kind {
    /// An option's value or a positional argument.
    Value,
    /// The first `--`.
    Separator,
    Option {
        flag: Option<Flag>,
        /// Whether it was written with one dash.
        short: bool,
        value: Option<Text>,
    },
}

/// Parses a command line. The error is the answer to the caller.
pub fn parse(given: &[Text]) -> Result<Arguments, Answer> {
    Parser::new(given)?.parse()
}

struct Parser<'a> {
    given: &'a [Text],
    kinds: Vec<Kind>,
    places: Vec<Option<Text>>,
    extras: Vec<&'a Text>,
    arguments: Arguments,
}

const PLACES: [&str; 3] = ["path", "old_str", "new_str"];

impl<'a> Parser<'a> {
    fn new(given: &'a [Text]) -> Result<Self, Answer> {
        let separator = given.iter().position(|it| it.0 == b"--");
        let kinds = given.iter().enumerate().map(|(at, it)| match separator {
            Some(separator) if at == separator => Ok(Kind::Separator),
            Some(separator) if at > separator => Ok(Kind::Value),
            _ => kind(it),
        });
        Ok(Self {
            given,
            kinds: kinds.collect::<Result<_, _>>()?,
            places: Vec::new(),
            extras: Vec::new(),
            arguments: Arguments {
                path: Text::default(),
                old: None,
                new: None,
                context_lines: 3,
                encoding: Text::from("utf-8"),
                backup_suffix: Text::default(),
                dry_run: false,
                expand_tabs: false,
                tab_size: 8,
            },
        })
    }

    fn parse(mut self) -> Result<Arguments, Answer> {
        let mut at = 0;
        while let Some(option) = (at..self.given.len()).find(|at| matches!(self.kinds[*at], Kind::Option { .. })) {
            let end = self.places(at);
            if end > at && end <= option {
                at = end;
                continue;
            }
            self.extras.extend(&self.given[at..option]);
            at = self.option(option)?;
        }
        let end = self.places(at);
        self.extras.extend(&self.given[end..]);
        if let Some(missing) = PLACES.get(self.places.len()..).filter(|missing| !missing.is_empty()) {
            let missing = missing.join(", ");
            return Err(refused(
                format!("the following arguments are required: {missing}").as_bytes(),
            ));
        }
        if !self.extras.is_empty() {
            let extras: Vec<Vec<u8>> = self.extras.iter().map(|extra| extra.shown()).collect();
            return Err(refused(
                &[b"unrecognized arguments: ".as_slice(), &extras.join(&b' ')].concat(),
            ));
        }
        let mut places = self.places.into_iter();
        self.arguments.path = path(&places.next().flatten().unwrap_or_default());
        self.arguments.old = places.next().flatten();
        self.arguments.new = places.next().flatten();
        Ok(self.arguments)
    }

    /// Assigns the arguments from `from` on to the remaining positions. Returns where it stopped.
    fn places(&mut self, from: usize) -> usize {
        let mut at = from;
        let is = |at: usize, wanted: fn(&Kind) -> bool| self.kinds.get(at).is_some_and(wanted);
        let separator = |at| is(at, |kind| matches!(kind, Kind::Separator));
        let mut taken = Vec::new();
        while self.places.len() + taken.len() < PLACES.len() {
            let from_separator = at;
            let begins = at + usize::from(separator(at));
            if !is(begins, |kind| matches!(kind, Kind::Value)) {
                break;
            }
            at = begins + 1;
            // argparse removes the first `--` of a position's strings: the separator, or else the value itself.
            let is_taken_off = begins == from_separator && self.given[begins].0 == b"--";
            at += usize::from(separator(at));
            taken.push((!is_taken_off).then(|| self.given[begins].clone()));
        }
        self.places.extend(taken);
        at
    }

    /// Carries out the option at `at`. Returns where it ended.
    fn option(&mut self, at: usize) -> Result<usize, Answer> {
        let Kind::Option { flag, short, value } = &self.kinds[at] else {
            return Ok(at + 1);
        };
        let (flag, short, value) = (*flag, *short, value.clone());
        let Some(flag) = flag else {
            self.extras.push(&self.given[at]);
            return Ok(at + 1);
        };
        if flag.takes_value() {
            if let Some(value) = value {
                self.set(flag, &value)?;
                return Ok(at + 1);
            }
            return match self.kinds.get(at + 1) {
                Some(Kind::Value) => {
                    self.set(flag, &self.given[at + 1])?;
                    Ok(at + 2)
                }
                _ => Err(about(flag, b"expected one argument")),
            };
        }
        if let Some(value) = value {
            // `-hh` is `-h -h`; no other letter may follow.
            let again = short && value.0.iter().all(|byte| *byte == b'h') && !value.0.is_empty();
            if !again {
                let skipped = match short {
                    true => value.0.iter().take_while(|byte| **byte == b'h').count(),
                    false => 0,
                };
                let rest = Text(value.0[skipped..].to_vec()).repr();
                return Err(about(flag, format!("ignored explicit argument {rest}").as_bytes()));
            }
        }
        match flag {
            Flag::DryRun => self.arguments.dry_run = true,
            Flag::ExpandTabs => self.arguments.expand_tabs = true,
            _ => {
                return Err(Answer {
                    out: HELP.as_bytes().to_vec(),
                    ..Answer::default()
                });
            }
        }
        Ok(at + 1)
    }

    fn set(&mut self, flag: Flag, value: &Text) -> Result<(), Answer> {
        let number = || {
            let words = || format!("invalid int value: {}", value.repr());
            number(value).ok_or_else(|| about(flag, words().as_bytes()))
        };
        match flag {
            Flag::ContextLines => self.arguments.context_lines = number()?,
            Flag::TabSize => self.arguments.tab_size = number()?,
            Flag::Encoding => self.arguments.encoding = value.clone(),
            Flag::BackupSuffix => self.arguments.backup_suffix = value.clone(),
            Flag::Help | Flag::DryRun | Flag::ExpandTabs => {}
        }
        Ok(())
    }
}

/// The kind of an argument before any `--`.
fn kind(given: &Text) -> Result<Kind, Answer> {
    let bytes = given.0.as_slice();
    let exactly = |name: &[u8]| FLAGS.iter().find(|(known, _)| known.as_bytes() == name);
    if bytes.len() < 2 || bytes[0] != b'-' {
        return Ok(Kind::Value);
    }
    let short = bytes[1] != b'-';
    let option = |flag: Flag, value: Option<&[u8]>| Kind::Option {
        flag: Some(flag),
        short,
        value: value.map(|value| Text(value.to_vec())),
    };
    if let Some((_, flag)) = exactly(bytes) {
        return Ok(option(*flag, None));
    }
    let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    };
    if value.is_some()
        && let Some((_, flag)) = exactly(name)
    {
        return Ok(option(*flag, value));
    }
    if short {
        // The rest of `-hREST` is its value.
        if let Some(rest) = bytes.strip_prefix(b"-h") {
            return Ok(option(Flag::Help, Some(rest)));
        }
    } else {
        let matching: Vec<_> = FLAGS
            .iter()
            .filter(|(known, _)| known.as_bytes().starts_with(name))
            .collect();
        match matching.as_slice() {
            [] => {}
            [(_, flag)] => return Ok(option(*flag, value)),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                return Err(refused(
                    &[
                        b"ambiguous option: ",
                        given.shown().as_slice(),
                        b" could match ",
                        names.as_bytes(),
                    ]
                    .concat(),
                ));
            }
        }
    }
    if is_negative_number(&bytes[1..]) || bytes.contains(&b' ') {
        return Ok(Kind::Value);
    }
    Ok(Kind::Option {
        flag: None,
        short,
        value: None,
    })
}

/// `-5`, `-.5` and `-5.5` are values.
fn is_negative_number(digits: &[u8]) -> bool {
    // Python's pattern accepts a line end after the number.
    let digits = digits.strip_suffix(b"\n").unwrap_or(digits);
    let all = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    match digits.iter().position(|byte| *byte == b'.') {
        None => !digits.is_empty() && all(digits),
        Some(point) => all(&digits[..point]) && point + 1 < digits.len() && all(&digits[point + 1..]),
    }
}

/// A number as Python's `int` reads it, limited to the range of this type.
fn number(text: &Text) -> Option<i128> {
    let text = std::str::from_utf8(&text.0).ok()?.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let plain = digits.split('_');
    let well_formed = plain
        .clone()
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let digits: String = plain.collect();
    if !well_formed || digits.len() > LONGEST_NUMBER {
        return None;
    }
    let number: i128 = digits.parse().unwrap_or(i128::MAX);
    Some(if negative { -number } else { number })
}

fn about(flag: Flag, what: &[u8]) -> Answer {
    refused(&[b"argument ", flag.name().as_bytes(), b": ", what].concat())
}

fn refused(what: &[u8]) -> Answer {
    Answer {
        err: [USAGE.as_bytes(), NAME.as_bytes(), b": error: ", what, b"\n"].concat(),
        status: REFUSED,
        ..Answer::default()
    }
}
