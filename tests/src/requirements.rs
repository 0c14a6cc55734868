//! The requirement list: rules in `spec/*.md`, joined to the code that keeps them and the tests that show it.
//!
//! A rule is a section of a Markdown file: a heading that is its id, a paragraph that is its text, a `Source:`. Code
//! and tests name it in comments of [duvet](https://github.com/awslabs/duvet)'s form:
//!
//! ```text
//! //= spec/responder.md#rsp-002
//! //= type=test
//! //# A duplicate SEND or WRITE MUST be acknowledged again and MUST NOT be executed.
//! ```
//!
//! Without a `type` it stands at the code that keeps the rule; `type=implication` is a rule that cannot be broken, by
//! construction, and needs no test. The text is repeated, so that a rule cannot change without all its places.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders of rooms that are no sources.
const SKIPPED: [&str; 2] = ["target", "fuzz"];

/// A rule.
#[derive(Clone, Debug)]
struct Rule {
    text: String,
    has_source: bool,
}

/// Kind of a citation: what it claims about its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Code,
    Test,
    Implication,
}

/// A comment that names a rule.
#[derive(Debug)]
struct Citation {
    file: PathBuf,
    line: usize,
    /// `spec/responder.md#rsp-002`
    rule: String,
    kind: Kind,
    quote: String,
    /// For a test: the function below.
    function: Option<String>,
}

/// Defect of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A rule says not where it comes from.
    NoSource(String),
    /// No code names the rule.
    NoCode(String),
    /// No test names the rule.
    NoTest(String),
    /// A place names a rule that is not there.
    NoSuchRule(String, PathBuf, usize),
    /// A place repeats another text than the rule's.
    StaleQuote(String, PathBuf, usize),
    /// Citation of a test that is none.
    NotATest(String, PathBuf, usize),
    /// A `type` that does not exist.
    NoSuchType(String, PathBuf, usize),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource(rule) => write!(f, "{rule}: says not where it comes from (Source: ...)"),
            Self::NoCode(rule) => write!(f, "{rule}: no code names it"),
            Self::NoTest(rule) => write!(f, "{rule}: no test names it"),
            Self::NoSuchRule(rule, file, line) => write!(f, "{}:{line}: {rule} is not there", file.display()),
            Self::StaleQuote(rule, file, line) => write!(f, "{}:{line}: {rule} reads otherwise", file.display()),
            Self::NotATest(rule, file, line) => {
                write!(f, "{}:{line}: no test function follows, for {rule}", file.display())
            }
            Self::NoSuchType(rule, file, line) => write!(f, "{}:{line}: no such type, for {rule}", file.display()),
        }
    }
}

/// Rules and citations of a source tree.
#[derive(Debug, Default)]
pub struct Requirements {
    rules: BTreeMap<String, Rule>,
    citations: Vec<Citation>,
    findings: Vec<Finding>,
}

impl Requirements {
    /// Reads `spec/*.md` and every Rust source below `root`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut all = Self::default();
        for path in files(&root.join("spec"), "md")? {
            let name = path.strip_prefix(root)?.display().to_string();
            all.add_rules(&name, &fs::read_to_string(&path)?);
        }
        for path in files(root, "rs")? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            all.add_citations(path.strip_prefix(root)?, &text);
        }
        Ok(all)
    }

    /// Number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules of a Markdown file.
    fn add_rules(&mut self, file: &str, text: &str) {
        let mut sections = text.split("\n## ");
        sections.next();
        for section in sections {
            let mut paragraphs = section.split("\n\n").map(words);
            let id = paragraphs.next().unwrap_or_default().to_lowercase();
            let text = paragraphs.next().unwrap_or_default();
            let has_source = paragraphs.any(|paragraph| paragraph.starts_with("Source: "));
            self.rules.insert(format!("{file}#{id}"), Rule { text, has_source });
        }
    }

    /// The citations of a source file.
    fn add_citations(&mut self, file: &Path, text: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(rule) = line.strip_prefix("//= spec/") else { continue };
            let (rule, line) = (format!("spec/{rule}"), index + 1);
            let mut rest = &lines[index + 1..];
            let mut kind = Kind::Code;
            if let Some(given) = rest.first().and_then(|next| next.strip_prefix("//= type=")) {
                rest = &rest[1..];
                kind = match given {
                    "implementation" => Kind::Code,
                    "test" => Kind::Test,
                    "implication" => Kind::Implication,
                    _ => {
                        self.findings.push(Finding::NoSuchType(rule.clone(), file.to_owned(), line));
                        continue;
                    }
                };
            }
            let quoted = rest.iter().map_while(|line| line.strip_prefix("//#"));
            let quote = words(&quoted.collect::<Vec<_>>().join(" "));
            let function = (kind == Kind::Test).then(|| function_below(rest)).flatten();
            self.citations.push(Citation { file: file.to_owned(), line, rule, kind, quote, function });
        }
    }

    /// All that is wrong.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.findings.clone();
        for citation in &self.citations {
            let place = || (citation.rule.clone(), citation.file.clone(), citation.line);
            match self.rules.get(&citation.rule) {
                None => {
                    let (rule, file, line) = place();
                    findings.push(Finding::NoSuchRule(rule, file, line));
                }
                Some(rule) if rule.text != citation.quote => {
                    let (rule, file, line) = place();
                    findings.push(Finding::StaleQuote(rule, file, line));
                }
                Some(_) => {}
            }
            if citation.kind == Kind::Test && citation.function.is_none() {
                let (rule, file, line) = place();
                findings.push(Finding::NotATest(rule, file, line));
            }
        }
        for (name, rule) in &self.rules {
            let has = |kind| self.citations.iter().any(|citation| citation.rule == *name && citation.kind == kind);
            if !rule.has_source {
                findings.push(Finding::NoSource(name.clone()));
            }
            if has(Kind::Implication) {
                continue;
            }
            if !has(Kind::Code) {
                findings.push(Finding::NoCode(name.clone()));
            }
            if !has(Kind::Test) {
                findings.push(Finding::NoTest(name.clone()));
            }
        }
        findings
    }
}

/// A line a rule: its places in code, its tests.
impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rule) in &self.rules {
            writeln!(f, "{name}: {}", rule.text)?;
            for citation in self.citations.iter().filter(|citation| citation.rule == *name) {
                let place = format!("{}:{}", citation.file.display(), citation.line);
                match (citation.kind, &citation.function) {
                    (Kind::Test, Some(function)) => writeln!(f, "    shown by  {function} ({place})")?,
                    (Kind::Implication, _) => writeln!(f, "    by construction at {place}")?,
                    (Kind::Test | Kind::Code, _) => writeln!(f, "    kept at   {place}")?,
                }
            }
        }
        Ok(())
    }
}

/// The test function that a comment at the start of `lines` belongs to: nothing but comments and attributes, among them
/// `#[test]`, stands between.
fn function_below(lines: &[&str]) -> Option<String> {
    let mut is_test = false;
    for line in lines {
        if line.starts_with("//") {
            continue;
        }
        if line.starts_with("#[") {
            is_test |= *line == "#[test]";
            continue;
        }
        let name = line.trim_start_matches("pub ").strip_prefix("fn ")?;
        return is_test.then(|| name.split('(').next().unwrap_or(name).to_owned());
    }
    None
}

/// Words with one space between.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The files below `dir` whose names end in `.extension`, in order.
pub fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                found.extend(files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str =
        "# Title\n\nLead.\n\n## X-001\n\nIt MUST\nwork.\n\nSource: IBA 1.\n\n## X-002\n\nIt MAY rest.\n";
    const CODE: &str = "    //= spec/x.md#x-001\n    //# It MUST\n    //# work.\n    work();\n";
    const TEST: &str = "//= spec/x.md#x-001\n//= type=test\n//# It MUST work.\n#[test]\nfn it_works() {}\n";

    fn findings(sources: &[&str]) -> Vec<String> {
        let mut all = Requirements::default();
        all.add_rules("spec/x.md", RULES);
        for source in sources {
            all.add_citations(Path::new("x.rs"), source);
        }
        all.findings().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_rule_needs_source_code_and_test() {
        let second = [
            "spec/x.md#x-002: says not where it comes from (Source: ...)",
            "spec/x.md#x-002: no code names it",
            "spec/x.md#x-002: no test names it",
        ];
        assert_eq!(findings(&[CODE, TEST]), second);
        assert!(findings(&[CODE]).contains(&"spec/x.md#x-001: no test names it".to_owned()));
        assert!(findings(&[TEST]).contains(&"spec/x.md#x-001: no code names it".to_owned()));
    }

    #[test]
    fn places_must_fit() {
        let has = |sources: &[&str], wanted: &str| {
            let findings = findings(sources);
            assert!(findings.iter().any(|finding| finding == wanted), "not {wanted:?}: {findings:?}");
        };
        has(&[&CODE.replace("work.", "sleep.")], "x.rs:1: spec/x.md#x-001 reads otherwise");
        has(&[&CODE.replace("x-001", "x-003")], "x.rs:1: spec/x.md#x-003 is not there");
        has(&[&TEST.replace("#[test]\n", "")], "x.rs:1: no test function follows, for spec/x.md#x-001");
        has(&[&TEST.replace("type=test", "type=tset")], "x.rs:1: no such type, for spec/x.md#x-001");
    }

    #[test]
    fn implications_need_no_test() {
        let implication = CODE.replacen("    //#", "    //= type=implication\n    //#", 1);
        assert!(!findings(&[&implication]).iter().any(|finding| finding.contains("x-001")));
    }
}
