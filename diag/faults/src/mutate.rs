//! Mutations of payloads: what a fuzzer does to bytes, by one number.

use std::fmt;
use std::str::FromStr;

/// Byte strings that mean something to the program under test, as AFL and libFuzzer have them in a file.
///
/// A line is `"text"`, `name="text"` or `name@level="text"`, with `\\`, `\"` and `\xNN`, or empty, or a comment that
/// begins with `#`.
///
/// ```
/// let tokens: urxe_faults::Dictionary = "# commands\nget=\"GET\"\n\"\\x00\\xff\"".parse().unwrap();
/// assert_eq!(tokens.tokens(), [b"GET".to_vec(), vec![0, 255]]);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Dictionary {
    tokens: Vec<Vec<u8>>,
}

impl Dictionary {
    /// Byte strings, in the order of the file.
    #[must_use]
    pub fn tokens(&self) -> &[Vec<u8>] {
        &self.tokens
    }
}

/// Syntax error in a dictionary, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotADictionary {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in bytes.
    pub column: usize,
    /// Description of what would be right there.
    pub expected: &'static str,
}

impl fmt::Display for NotADictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: expected {}", self.line, self.column, self.expected)
    }
}

impl std::error::Error for NotADictionary {}

impl FromStr for Dictionary {
    type Err = NotADictionary;

    fn from_str(text: &str) -> Result<Self, NotADictionary> {
        let mut tokens = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let trimmed = content.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let token = token(content).map_err(|(at, expected)| NotADictionary { line, column: at + 1, expected })?;
            tokens.push(token);
        }
        Ok(Self { tokens })
    }
}

/// The bytes between the quotes of a line; or where it is wrong, and what would be right.
fn token(line: &str) -> Result<Vec<u8>, (usize, &'static str)> {
    let line = line.trim_end();
    let open = line.find('"').ok_or((line.len(), "a text in quotes"))?;
    let name = line.get(..open).unwrap_or_default().trim();
    if !name.is_empty() && !name.ends_with('=') {
        return Err((open, "name=\"text\""));
    }
    let bytes = line.as_bytes();
    let (mut token, mut at) = (Vec::new(), open + 1);
    loop {
        match *bytes.get(at..).unwrap_or_default() {
            [b'"'] if token.is_empty() => return Err((at, "a text that is not empty")),
            [b'"'] => return Ok(token),
            [b'"', ..] => return Err((at + 1, "the end of the line")),
            [b'\\', quoted @ (b'\\' | b'"'), ..] => {
                token.push(quoted);
                at += 2;
            }
            [b'\\', b'x', high, low, ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err((at + 2, "two hexadecimal digits"));
                };
                token.push(high << 4 | low);
                at += 4;
            }
            [b'\\', ..] => return Err((at, "\\\\, \\\" or \\xNN")),
            [byte, ..] => {
                token.push(byte);
                at += 1;
            }
            [] => return Err((at, "a quote that ends the text")),
        }
    }
}

/// Numbers at which programs go wrong.
const INTERESTING: [u64; 20] = [
    0,
    1,
    2,
    7,
    16,
    32,
    64,
    100,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x3FF,
    0x1000,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    u64::MAX,
];

/// A mutation: a few edits of bytes, all decided by one number.
#[derive(Clone, Debug)]
pub struct Mutation<'a> {
    dictionary: &'a Dictionary,
    state: u64,
}

impl<'a> Mutation<'a> {
    /// The mutation of this number.
    #[must_use]
    pub const fn new(dictionary: &'a Dictionary, number: u64) -> Self {
        Self { dictionary, state: number }
    }

    /// Changes bytes, and keeps their number.
    pub fn edit(mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        for _ in 0..self.edits() {
            self.overwrite(bytes);
        }
    }

    /// Changes a message, its length too, which stays within `most` bytes.
    pub fn edit_message(mut self, message: &mut Vec<u8>, most: usize) {
        for _ in 0..self.edits() {
            match self.below(8) {
                0 => message.truncate(self.below(message.len() + 1)),
                1 => {
                    let (at, count) = (self.below(message.len() + 1), 1 + self.below(64));
                    let byte = self.byte();
                    message.splice(at..at, std::iter::repeat_n(byte, count));
                }
                2 if !self.dictionary.tokens.is_empty() => {
                    let at = self.below(message.len() + 1);
                    let token = self.token();
                    message.splice(at..at, token);
                }
                _ if message.is_empty() => message.push(self.byte()),
                _ => self.overwrite(message),
            }
            message.truncate(most);
        }
    }

    /// One edit as often as not, seldom many.
    fn edits(&mut self) -> usize {
        1 << (self.next().trailing_ones().min(4))
    }

    /// Changes some of `bytes`, of which there is one at least.
    fn overwrite(&mut self, bytes: &mut [u8]) {
        let at = self.below(bytes.len());
        match self.below(if self.dictionary.tokens.is_empty() { 8 } else { 12 }) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.byte(),
            2 | 3 => {
                let width = 1 << self.below(4);
                let number = INTERESTING[self.below(INTERESTING.len())];
                self.put(bytes, at, number, width);
            }
            4 | 5 => {
                let width = 1 << self.below(3);
                let (by, big) = ((self.below(70) as u64).wrapping_sub(35), self.below(2) == 0);
                let old = get(bytes, at, width, big);
                put(bytes, at, old.wrapping_add(by), width, big);
            }
            6 => {
                let (from, len) = (self.below(bytes.len()), 1 + self.below(32));
                let copy: Vec<u8> = bytes[from..].iter().copied().take(len).collect();
                overlay(bytes, at, &copy);
            }
            7 => {
                let (byte, len) = (self.byte(), 1 + self.below(32));
                bytes[at..].iter_mut().take(len).for_each(|place| *place = byte);
            }
            // Messages begin with what they are: as often there as anywhere.
            _ => {
                let at = if self.below(2) == 0 { 0 } else { at };
                let token = self.token();
                overlay(bytes, at, &token);
            }
        }
    }

    fn put(&mut self, bytes: &mut [u8], at: usize, number: u64, width: usize) {
        let big = self.below(2) == 0;
        put(bytes, at, number, width, big);
    }

    fn token(&mut self) -> Vec<u8> {
        let which = self.below(self.dictionary.tokens.len());
        self.dictionary.tokens[which].clone()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        crate::chance::throw(self.state, 0, self.state)
    }
}

/// The number at `at`, of as many bytes as there are, `width` at most.
fn get(bytes: &[u8], at: usize, width: usize, big: bool) -> u64 {
    let part = bytes[at..].iter().take(width);
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if big { part.fold(0, join) } else { part.rev().fold(0, join) }
}

fn put(bytes: &mut [u8], at: usize, number: u64, width: usize, big: bool) {
    let width = width.min(bytes.len() - at);
    let mut number = number.to_le_bytes();
    let number = &mut number[..width];
    if big {
        number.reverse();
    }
    overlay(bytes, at, number);
}

/// Copies as much of `new` as fits.
fn overlay(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..].iter_mut().zip(new).for_each(|(place, byte)| *place = *byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_of_afl_and_libfuzzer() {
        let text = "# AFL\nheader_png=\"\\x89PNG\\x0d\"\nlate@2=\"a\\\\b\\\"c\"\n\n  \"two words\"  \n";
        let tokens: Dictionary = text.parse().unwrap();
        assert_eq!(tokens.tokens, [b"\x89PNG\r".to_vec(), b"a\\b\"c".to_vec(), b"two words".to_vec()]);
        for (text, at) in [
            ("\"open", (1, 6)),
            ("\n\"\\q\"", (2, 2)),
            ("\"\\x4\"", (1, 4)),
            ("name \"x\"", (1, 6)),
            ("bare", (1, 5)),
            ("\"a\" b", (1, 4)),
            ("\"\"", (1, 2)),
        ] {
            let error = text.parse::<Dictionary>().unwrap_err();
            assert_eq!((error.line, error.column), at, "{text}: {error}");
        }
    }

    #[test]
    fn one_number_one_mutation() {
        let tokens: Dictionary = "\"TOKEN\"".parse().unwrap();
        let edited = |number| {
            let mut bytes = [7; 100];
            Mutation::new(&tokens, number).edit(&mut bytes);
            bytes
        };
        assert_eq!(edited(3), edited(3));
        let differ = (0..1000).filter(|number| edited(*number) != [7; 100]).count();
        assert!(differ > 900, "{differ}");
        let with_token = (0..1000).filter(|number| edited(*number).windows(5).any(|part| part == b"TOKEN")).count();
        assert!(with_token > 200, "{with_token}");
    }

    #[test]
    fn messages_stay_within_their_bound() {
        let tokens = Dictionary::default();
        let mut lengths = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            let mut message = vec![1; 40];
            Mutation::new(&tokens, number).edit_message(&mut message, 64);
            assert!(message.len() <= 64);
            lengths.insert(message.len());
        }
        assert!(lengths.contains(&0) && lengths.contains(&64) && lengths.len() > 40, "{lengths:?}");
        Mutation::new(&tokens, 5).edit(&mut []);
    }
}
