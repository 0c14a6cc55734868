//! Packets as text.
//!
#![doc = concat!("```text\n", include_str!("grammar.txt"), "```")]

mod literals;

use std::fmt;
use std::time::Duration;

use urxe_wire::Operation;

pub(crate) use literals::number_bytes;
pub use literals::unhex;
use literals::{Word, operation, payload, time, value, width, words};

/// The grammar, as help texts show it.
pub const GRAMMAR: &str = include_str!("grammar.txt");

/// The place of a script that makes no sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in bytes.
    pub column: usize,
    /// Description of what would be right there.
    pub expected: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: expected {}", self.line, self.column, self.expected)
    }
}

impl std::error::Error for Invalid {}

/// A number of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// The number.
    Number(u64),
    /// Relative to what it would be else.
    Relative(i64),
    /// A name that `let` gave, and what is added.
    Name(String, u64),
}

/// Bytes of a payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// A number of so many bytes, big endian or little.
    Number(Value, usize, bool),
    /// Random bytes, so many of them.
    Random(usize),
}

/// Packets that are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// No answer.
    Nothing,
    /// An ACK.
    Ack,
    /// A NAK of any kind, RNR NAKs too.
    Nak,
    /// A packet of this operation.
    Operation(Operation),
}

/// A step of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A message by SEND.
    Send(Vec<Part>),
    /// One packet.
    Packet(Operation, Vec<(String, Value)>, Vec<Part>),
    /// Bytes from the BTH to the padding.
    Raw(Vec<Part>),
    /// Time in which what comes is answered.
    Wait(Duration),
    /// Packet that must come, and how soon.
    Expect(Expected, Duration),
    /// A number of so many bytes out of the payload that came last, big endian or little, from this byte on.
    Let(String, usize, bool, usize),
    /// Steps, so often.
    Repeat(u64, Vec<Self>),
}

/// A step, and its line.
pub type Numbered = (usize, Step);

const FIELDS: [&str; 21] = [
    "psn", "qp", "ackreq", "se", "m", "pkey", "tver", "pad", "opcode", "va", "rkey", "len", "imm", "swap", "compare",
    "syndrome", "msn", "original", "qkey", "srcqp", "icrc",
];
/// Repeats inside each other.
const NESTED: usize = 16;
const STATEMENT: &str =
    "send, raw, wait, expect, let, repeat, end or an operation such as SEND_ONLY, WRITE_FIRST, READ_REQUEST";

/// Reads a script.
///
/// # Errors
/// [`Invalid`], with line and column.
pub fn parse(text: &str) -> Result<Vec<Numbered>, Invalid> {
    let mut open: Vec<(usize, u64, Vec<Numbered>)> = Vec::new();
    let mut steps = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let words = words(line, content)?;
        let Some((first, rest)) = words.split_first() else { continue };
        let at = |word: &Word<'_>, expected: &str| Invalid { line, column: word.at + 1, expected: expected.to_owned() };
        let end = Word { at: content.len(), text: "" };
        let one = |expected: &str| match rest {
            [only] => Ok(*only),
            [_, second, ..] => Err(at(second, "the end of the line")),
            [] => Err(at(&end, expected)),
        };
        let step = match first.text {
            "send" => Step::Send(payload(line, rest)?),
            "raw" => Step::Raw(payload(line, rest)?),
            "wait" => {
                const EXPECTED: &str = "a time such as 10ms";
                let word = one(EXPECTED)?;
                Step::Wait(time(word.text).ok_or_else(|| at(&word, EXPECTED))?)
            }
            "expect" => {
                const EXPECTED: &str = "ack, nak, nothing or an operation; then perhaps within=1s";
                let what = rest.first().ok_or_else(|| at(&end, EXPECTED))?;
                let expected = match what.text {
                    "nothing" => Expected::Nothing,
                    "ack" => Expected::Ack,
                    "nak" => Expected::Nak,
                    name => Expected::Operation(operation(name).ok_or_else(|| at(what, EXPECTED))?),
                };
                let default = Duration::from_millis(if expected == Expected::Nothing { 200 } else { 2000 });
                let within = match rest.get(1) {
                    None => default,
                    Some(word) => {
                        let given = word.text.strip_prefix("within=").and_then(time);
                        given.ok_or_else(|| at(word, "within=1s"))?
                    }
                };
                if let Some(more) = rest.get(2) {
                    return Err(at(more, "the end of the line"));
                }
                Step::Expect(expected, within)
            }
            "let" => {
                const EXPECTED: &str = "NAME=be64@OFFSET, of the payload that came last";
                let word = one(EXPECTED)?;
                let taken = word.text.split_once('=').and_then(|(name, from)| {
                    let (kind, offset) = from.split_once('@')?;
                    let (bytes, is_big) = width(kind)?;
                    let is_name =
                        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                    Some(Step::Let(name.to_owned(), bytes, is_big, offset.parse().ok()?)).filter(|_| is_name)
                });
                taken.ok_or_else(|| at(&word, EXPECTED))?
            }
            "repeat" => {
                const EXPECTED: &str = "how often";
                let word = one(EXPECTED)?;
                let times = word.text.parse().map_err(|_| at(&word, EXPECTED))?;
                if open.len() == NESTED {
                    return Err(at(first, "at most 16 repeats inside each other"));
                }
                open.push((line, times, std::mem::take(&mut steps)));
                continue;
            }
            "end" => {
                if let Some(more) = rest.first() {
                    return Err(at(more, "the end of the line"));
                }
                let (begun, times, before) = open.pop().ok_or_else(|| at(first, "no end: nothing is repeated here"))?;
                let inner = std::mem::replace(&mut steps, before);
                steps.push((begun, Step::Repeat(times, inner.into_iter().map(|(_, step)| step).collect())));
                continue;
            }
            name => {
                let operation = operation(name).ok_or_else(|| at(first, STATEMENT))?;
                let is_field =
                    |word: &Word<'_>| word.text.split_once('=').is_some_and(|(name, _)| FIELDS.contains(&name));
                let split = rest.iter().position(|word| !is_field(word)).unwrap_or(rest.len());
                let (fields, parts) = rest.split_at(split);
                let field = |word: &Word<'_>| {
                    let (name, text) = word.text.split_once('=').unwrap_or_default();
                    let value = if (name, text) == ("icrc", "bad") { Some(Value::Relative(1)) } else { value(text) };
                    let value = value.ok_or_else(|| at(word, "a number, +N, -N or $NAME"))?;
                    Ok((name.to_owned(), value))
                };
                let fields = fields.iter().map(field).collect::<Result<_, Invalid>>()?;
                Step::Packet(operation, fields, payload(line, parts)?)
            }
        };
        steps.push((line, step));
    }
    match open.pop() {
        None => Ok(steps),
        Some((line, ..)) => Err(Invalid { line, column: 1, expected: "an end behind what is repeated".to_owned() }),
    }
}

/// Reads a payload that is the same each time: without random bytes and names.
///
/// # Errors
/// [`Invalid`], with line and column.
pub fn bytes(text: &str) -> Result<Vec<u8>, Invalid> {
    const EXPECTED: &str = "bytes that are known: no random*N, no $NAME";
    let words = words(1, text)?;
    let mut bytes = Vec::new();
    for (word, part) in words.iter().zip(payload(1, &words)?) {
        match part {
            Part::Bytes(part) => bytes.extend(part),
            Part::Number(Value::Number(number), width, is_big) => bytes.extend(number_bytes(number, width, is_big)),
            _ => return Err(Invalid { line: 1, column: word.at + 1, expected: EXPECTED.to_owned() }),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_grammar_are_scripts() {
        let example: String =
            GRAMMAR.split_once("Example\n").unwrap().1.lines().fold(String::new(), |all, line| all + line + "\n");
        let steps = parse(&example).unwrap();
        assert!(steps.len() > 5, "{steps:?}");
        for field in FIELDS {
            assert!(GRAMMAR.contains(field), "{field}");
        }
    }

    #[test]
    fn payloads() {
        let steps = parse("send \"a b\\x00\\\"\" hex:0aFF zero*2 be16:258 le32:1 \"xy\"*2 # and \"more\"").unwrap();
        let [(1, Step::Send(parts))] = &steps[..] else { panic!("{steps:?}") };
        let bytes: Vec<u8> = parts
            .iter()
            .flat_map(|part| match part {
                Part::Bytes(bytes) => bytes.clone(),
                Part::Number(Value::Number(number), bytes, is_big) => number_bytes(*number, *bytes, *is_big),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(bytes, b"a b\0\"\x0a\xff\0\0\x01\x02\x01\0\0\0xyxy");
    }

    #[test]
    fn bytes_of_a_payload() {
        assert_eq!(bytes("u8:1 \"a b\" zero*2 be16:258 hex:0aFF").unwrap(), b"\x01a b\0\0\x01\x02\x0a\xff");
        assert_eq!(bytes("").unwrap(), b"");
        for (text, column) in [("zero random*2", 6), ("be64:$va", 1), ("\"a\" x", 5)] {
            assert_eq!(bytes(text).unwrap_err().column, column, "{text}");
        }
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, line, column) in [
            ("send \"open", 1, 6),
            ("\n  jump 1", 2, 3),
            ("SEND_ONLY psn=x", 1, 11),
            ("SEND_ONLY \"ok\" psn=1", 1, 16),
            ("send hex:abc", 1, 6),
            ("wait soon", 1, 6),
            ("wait", 1, 5),
            ("wait 18446744073709551615s", 1, 6),
            ("send \"xy\"*1048576", 1, 6),
            ("send be64:1*1048576", 1, 6),
            (&"repeat 1\n".repeat(17), 17, 1),
            ("expect", 1, 7),
            ("expect ack within=1", 1, 12),
            ("let va=be64", 1, 5),
            ("repeat 2\nsend \"x\"", 1, 1),
            ("end", 1, 1),
            ("repeat often", 1, 8),
            ("send be32:\"x\"", 1, 6),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        }
    }
}
