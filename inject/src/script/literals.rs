//! Words, numbers, times and payloads of a script.

use std::time::Duration;

use urxe_wire::Operation;

use super::{Invalid, Part, Value};

/// Most bytes of a part of a payload.
const MOST: usize = 1 << 20;

/// The longest time.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// A word of a line.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) at: usize,
    pub(super) text: &'a str,
}

/// Words up to a comment; a text in quotes belongs to its word.
pub(super) fn words(line: usize, content: &str) -> Result<Vec<Word<'_>>, Invalid> {
    let (mut words, mut start, mut quoted, mut escaped) = (Vec::new(), None, None, false);
    for (at, c) in content.char_indices() {
        if quoted.is_some() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => quoted = None,
                _ => {}
            }
            continue;
        }
        if c == '"' {
            quoted = Some(at);
        }
        if c.is_whitespace() || c == '#' {
            words.extend(start.take().map(|start| Word { at: start, text: &content[start..at] }));
            if c == '#' {
                return Ok(words);
            }
        } else {
            start.get_or_insert(at);
        }
    }
    if let Some(at) = quoted {
        return Err(Invalid { line, column: at + 1, expected: "a quote that ends the text".to_owned() });
    }
    words.extend(start.map(|start| Word { at: start, text: &content[start..] }));
    Ok(words)
}

pub(super) fn payload(line: usize, words: &[Word<'_>]) -> Result<Vec<Part>, Invalid> {
    const EXPECTED: &str =
        "\"text\", hex:0a0b, zero, random*N, u8:N, be16:N, le32:N or be64:$NAME, with *N behind it perhaps";
    let part = |word: &Word<'_>| {
        let invalid = || Invalid { line, column: word.at + 1, expected: EXPECTED.to_owned() };
        let (text, times) = match word.text.rsplit_once('*') {
            Some((text, times)) if !times.contains('"') => (text, times.parse().map_err(|_| invalid())?),
            _ => (word.text, 1),
        };
        if times > MOST {
            return Err(invalid());
        }
        if text == "random" {
            return Ok(Part::Random(times));
        }
        if let Some((kind, number)) = text.split_once(':')
            && let Some((bytes, is_big)) = width(kind)
        {
            let value = value(number).ok_or_else(invalid)?;
            return match (times, value) {
                (times, _) if bytes * times > MOST => Err(invalid()),
                (1, value) => Ok(Part::Number(value, bytes, is_big)),
                (_, Value::Number(number)) => Ok(Part::Bytes(number_bytes(number, bytes, is_big).repeat(times))),
                _ => Err(invalid()),
            };
        }
        let bytes = if let Some(digits) = text.strip_prefix("hex:") {
            unhex(digits)
        } else if text == "zero" {
            Some(vec![0])
        } else {
            unquoted(text)
        };
        let bytes = bytes.filter(|bytes| bytes.len().saturating_mul(times) <= MOST);
        bytes.map(|bytes| Part::Bytes(bytes.repeat(times))).ok_or_else(invalid)
    };
    words.iter().map(part).collect()
}

/// A number as bytes.
pub(crate) fn number_bytes(number: u64, bytes: usize, is_big: bool) -> Vec<u8> {
    if is_big { number.to_be_bytes()[8 - bytes..].to_vec() } else { number.to_le_bytes()[..bytes].to_vec() }
}

/// Bytes in hexadecimal.
#[must_use]
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

fn unquoted(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::new();
    let mut rest = inner.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (escaped, after) = rest.split_first()?;
        rest = after;
        bytes.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                *unhex(std::str::from_utf8(digits).ok()?)?.first()?
            }
            b'\\' | b'"' => *escaped,
            _ => return None,
        });
    }
    Some(bytes)
}

pub(super) fn width(kind: &str) -> Option<(usize, bool)> {
    Some(match kind {
        "u8" => (1, true),
        "be16" => (2, true),
        "be32" => (4, true),
        "be64" => (8, true),
        "le16" => (2, false),
        "le32" => (4, false),
        "le64" => (8, false),
        _ => return None,
    })
}

pub(super) fn value(text: &str) -> Option<Value> {
    if let Some(name) = text.strip_prefix('$') {
        let (name, add) = match name.split_once('+') {
            Some((name, add)) => (name, number(add)?),
            None => (name, 0),
        };
        return (!name.is_empty()).then(|| Value::Name(name.to_owned(), add));
    }
    if let Some(up) = text.strip_prefix('+') {
        return number(up)?.try_into().ok().map(Value::Relative);
    }
    if let Some(down) = text.strip_prefix('-') {
        return i64::try_from(number(down)?).ok().map(|down| Value::Relative(-down));
    }
    number(text).map(Value::Number)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

pub(super) fn time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(at);
    let count = digits.parse().ok()?;
    let time = match unit {
        "us" => Duration::from_micros(count),
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        _ => return None,
    };
    (time <= LONGEST).then_some(time)
}

/// An operation by its name: `SEND_ONLY`, `READ_REQUEST`.
pub(super) fn operation(name: &str) -> Option<Operation> {
    let name: String = name.chars().filter(|c| *c != '_').collect();
    Operation::ALL.into_iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(&name))
}
