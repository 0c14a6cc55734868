#![no_std]
#![forbid(unsafe_code)]
//! Codes of RDMA, with meanings, usual causes and remedies: tables, no more.
//!
//! The provider takes from here what it says about a failure besides what it knows of the case; `urxe explain` looks
//! codes up. One file a kind of code: [`wc`] completion statuses, [`nak`] AETH syndromes, [`event`] asynchronous events,
//! [`cm`] events and rejections of rdma_cm, [`errno`] what calls return; [`Verb`] names the verbs.
//!
//! ```
//! use urxe_explain::{TABLES, wc};
//!
//! let entry = wc::TABLE.by_number(12).unwrap();
//! assert_eq!(entry.name, "IBV_WC_RETRY_EXC_ERR");
//! // A name may belong to any kind of code.
//! assert!(TABLES.iter().any(|table| table.by_name("einval").is_some()));
//! ```

#[cfg(test)]
extern crate std;

pub mod cm;
pub mod errno;
pub mod event;
pub mod nak;
pub mod verb;
pub mod wc;

pub use verb::Verb;

/// Explanation of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number.
    pub number: u32,
    /// Name in `verbs.h`, `errno.h`, or the specification.
    pub name: &'static str,
    /// Meaning.
    pub meaning: &'static str,
    /// Usual cause.
    pub cause: &'static str,
    /// Remedy.
    pub remedy: &'static str,
}

/// A row of a table.
const fn row(
    number: u32,
    name: &'static str,
    meaning: &'static str,
    cause: &'static str,
    remedy: &'static str,
) -> Entry {
    Entry { number, name, meaning, cause, remedy }
}

/// A kind of code.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Kind of the codes, such as "completion status".
    pub kind: &'static str,
    /// Word that asks for this kind only, such as `wc`.
    pub word: &'static str,
    /// Prefix of names that may be left out, such as `IBV_WC_`.
    pub prefix: &'static str,
    /// The codes.
    pub entries: &'static [Entry],
}

/// Tables of every kind of code.
pub const TABLES: [Table; 6] = [wc::TABLE, nak::TABLE, event::TABLE, cm::EVENTS, cm::REJECTIONS, errno::TABLE];

impl Table {
    /// The code with this number.
    #[must_use]
    pub fn by_number(&self, number: u32) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| entry.number == number)
    }

    /// The code with this name, in any case, with or without the prefix.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&'static Entry> {
        self.entries.iter().find(|entry| {
            entry.name.eq_ignore_ascii_case(name)
                || entry.name.strip_prefix(self.prefix).is_some_and(|short| short.eq_ignore_ascii_case(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_code_is_there_twice_and_each_says_everything() {
        for table in TABLES {
            let numbers: BTreeSet<_> = table.entries.iter().map(|entry| entry.number).collect();
            assert_eq!(numbers.len(), table.entries.len(), "{}", table.kind);
            for entry in table.entries {
                for text in [entry.meaning, entry.cause, entry.remedy] {
                    assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text:?}", entry.name);
                }
                assert_eq!(table.by_name(entry.name), Some(entry));
                assert_eq!(table.by_number(entry.number), Some(entry));
            }
        }
    }

    #[test]
    fn names_are_found_as_people_write_them() {
        for name in ["IBV_WC_RETRY_EXC_ERR", "retry_exc_err", "RETRY_EXC_ERR"] {
            assert_eq!(wc::TABLE.by_name(name).map(|entry| entry.number), Some(12), "{name}");
        }
        assert_eq!(errno::TABLE.by_name("einval").map(|entry| entry.number), Some(22));
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
