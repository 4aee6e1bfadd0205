//! Fields with paths. In: a tree. Out: typed values; what is wrong is reported with its place and goes on, so
//! that a file's mistakes are all told at once.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Located;
use super::error::{Errors, ObjectError, ObjectErrorKind};
use super::tree::{Place, Tree, Value};

/// Names at least this alike are offered as what was meant.
const ALIKE: f64 = 0.7;

/// Bytes of a text that can be a known word with a slip in it.
const LONGEST: usize = 100;

/// Characters of what the user wrote that one part of a message repeats.
const SHOWN: usize = 300;

/// Mistakes of a file that are told; a text can hold far more than anybody reads.
const MAX_ERRORS: usize = 1000;

/// Where mistakes are collected.
pub(super) struct Context {
    file: String,
    object: RefCell<String>,
    errors: RefCell<Vec<ObjectError>>,
}

impl Context {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), object: RefCell::default(), errors: RefCell::default() }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Names the object that the next mistakes are in.
    pub(super) fn begin(&self, object: &str) {
        *self.object.borrow_mut() = one_line(object);
    }

    pub(super) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    pub(super) fn report(
        &self,
        place: Place,
        field: &str,
        kind: ObjectErrorKind,
        problem: String,
        allowed: Option<String>,
    ) {
        if self.count() >= MAX_ERRORS {
            return;
        }
        self.errors.borrow_mut().push(ObjectError {
            kind,
            file: self.file.clone(),
            line: place.line,
            column: place.column,
            object: self.object.borrow().clone(),
            field: one_line(field),
            problem: one_line(&problem),
            allowed,
        });
    }

    pub(super) fn finish(self, objects: Vec<Located>) -> Result<Vec<Located>, Errors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| (error.line, error.column));
        if errors.is_empty() { Ok(objects) } else { Err(Errors(errors)) }
    }
}

/// A map whose fields are asked for by name; what was never asked for is unknown.
pub(super) struct Map<'a> {
    context: &'a Context,
    path: String,
    place: Place,
    entries: &'a [(String, Place, Tree)],
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Map<'a> {
    /// The document itself.
    pub(super) fn root(context: &'a Context, tree: &'a Tree) -> Option<Self> {
        Field { context, path: String::new(), tree }.map()
    }

    /// A field, `None` when it is not there or null.
    pub(super) fn get(&self, name: &'static str) -> Option<Field<'a>> {
        self.asked.borrow_mut().push(name);
        let (_, _, tree) = self.entries.iter().find(|(key, ..)| key == name)?;
        (!tree.is_null()).then(|| Field { context: self.context, path: join(&self.path, name), tree })
    }

    /// A field that must be there.
    pub(super) fn required(&self, name: &'static str) -> Option<Field<'a>> {
        let field = self.get(name);
        if field.is_none() {
            self.report(
                &join(&self.path, name),
                ObjectErrorKind::MissingField,
                "required, but missing",
                None,
            );
        }
        field
    }

    /// Whether a field is there, without counting it as known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _, tree)| key == name && !tree.is_null())
    }

    /// Whether a field is a list without items.
    pub(super) fn is_empty_list(&self, name: &str) -> bool {
        let found = self.entries.iter().find(|(key, ..)| key == name);
        found.is_some_and(|(_, _, tree)| matches!(tree.value(), Value::List(items) if items.is_empty()))
    }

    /// Text of a field, without counting it as known.
    pub(super) fn peek_text(&self, name: &str) -> Option<&'a str> {
        self.entries.iter().find(|(key, ..)| key == name).and_then(|(_, _, tree)| match tree.value() {
            Value::Scalar { text, .. } => Some(text.as_str()),
            _ => None,
        })
    }

    /// `metadata.name`, for naming the object in what is reported of it.
    pub(super) fn peek_name(&self) -> Option<String> {
        let (_, _, metadata) = self.entries.iter().find(|(key, ..)| key == "metadata")?;
        let Value::Map(fields) = metadata.value() else {
            return None;
        };
        fields.iter().find(|(key, ..)| key == "name").and_then(|(_, _, tree)| match tree.value() {
            Value::Scalar { text, .. } => Some(text.clone()),
            _ => None,
        })
    }

    /// All entries as fields, for maps whose keys are the user's own.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        self.entries.iter().map(|(key, _, tree)| {
            (key.as_str(), Field { context: self.context, path: join(&self.path, key), tree })
        })
    }

    /// Reports what contradicts itself in this map.
    pub(super) fn contradiction(&self, problem: &str) {
        self.report(&self.path, ObjectErrorKind::Contradiction, problem, None);
    }

    /// Reports that one of several fields of this map must be there.
    pub(super) fn missing(&self, problem: &str) {
        self.report(&self.path, ObjectErrorKind::MissingField, problem, None);
    }

    fn report(&self, field: &str, kind: ObjectErrorKind, problem: &str, allowed: Option<String>) {
        self.context.report(self.place, field, kind, problem.to_owned(), allowed);
    }

    /// Reports every field that was not asked for.
    pub(super) fn finish(&self) {
        self.finish_with("");
    }

    /// As [`finish`](Self::finish), with a word on where such fields belong.
    pub(super) fn finish_with(&self, hint: &str) {
        let mut asked = self.asked.borrow().clone();
        asked.dedup();
        for (key, place, _) in self.entries.iter().filter(|(key, ..)| !asked.contains(&key.as_str())) {
            let problem = format!("unknown field{hint}{}", nearest(key, &asked));
            let allowed = (!asked.is_empty()).then(|| asked.join(", "));
            self.context.report(
                *place,
                &join(&self.path, key),
                ObjectErrorKind::UnknownField,
                problem,
                allowed,
            );
        }
    }
}

/// A value and the path to it.
pub(super) struct Field<'a> {
    context: &'a Context,
    path: String,
    tree: &'a Tree,
}

impl<'a> Field<'a> {
    pub(super) fn tree(&self) -> &'a Tree {
        self.tree
    }

    /// Reports a value that is not allowed.
    pub(super) fn refuse(&self, problem: &str, allowed: Option<&str>) {
        let allowed = allowed.map(str::to_owned);
        self.context.report(
            self.tree.place(),
            &self.path,
            ObjectErrorKind::Value,
            problem.to_owned(),
            allowed,
        );
    }

    pub(super) fn map(&self) -> Option<Map<'a>> {
        let Value::Map(entries) = self.tree.value() else {
            self.refuse("a map of fields is expected", None);
            return None;
        };
        let place = self.tree.place();
        Some(Map {
            context: self.context,
            path: self.path.clone(),
            place,
            entries,
            asked: RefCell::default(),
        })
    }

    pub(super) fn list(&self) -> Vec<Field<'a>> {
        let Value::List(items) = self.tree.value() else {
            self.refuse("a list is expected", None);
            return Vec::new();
        };
        let item =
            |(number, tree)| Field { context: self.context, path: format!("{}[{number}]", self.path), tree };
        items.iter().enumerate().map(item).collect()
    }

    /// A list that says something.
    pub(super) fn filled_list(&self) -> Vec<Field<'a>> {
        let items = self.list();
        if items.is_empty() && matches!(self.tree.value(), Value::List(_)) {
            self.refuse("an empty list matches nothing; leave the field out to match everything", None);
        }
        items
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.tree.value() {
            Value::Scalar { text, .. } => Some(text),
            _ => {
                self.refuse("a text is expected", None);
                None
            }
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.choice(&[("true", true), ("false", false)])
    }

    /// A number in decimal or, with `0x`, in hexadecimal.
    pub(super) fn number(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let text = self.text()?;
        let allowed = format!("{} to {}", range.start(), range.end());
        match read_number(text) {
            Some(number) if range.contains(&number) => Some(number),
            Some(number) => {
                self.refuse(&format!("{number} is out of range"), Some(&allowed));
                None
            }
            None => {
                self.refuse(&format!("\"{text}\" is not a number"), Some(&allowed));
                None
            }
        }
    }

    /// A time such as `500ms`, `2s`, `1m`; a plain number is seconds.
    pub(super) fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let text = self.text()?;
        let (first, last) = (range.start(), range.end());
        let allowed = format!("{first:?} to {last:?}, as 500ms, 2s, 1m");
        match read_duration(text) {
            Some(duration) if range.contains(&duration) => Some(duration),
            Some(_) => {
                self.refuse(&format!("{text} is out of range"), Some(&allowed));
                None
            }
            None => {
                self.refuse(&format!("\"{text}\" is not a time"), Some(&allowed));
                None
            }
        }
    }

    /// Whether it is a map of fields, for values with a short form.
    pub(super) fn is_map(&self) -> bool {
        matches!(self.tree.value(), Value::Map(_))
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let problem = format!("unknown value \"{text}\"{}", nearest(text, &allowed));
        self.refuse(&problem, Some(&allowed.join(", ")));
        None
    }

    /// A text that another type reads.
    pub(super) fn parse<T>(&self, read: impl FnOnce(&str) -> Option<T>, what: impl Display) -> Option<T> {
        let text = self.text()?;
        let value = read(text);
        if value.is_none() {
            self.refuse(&format!("\"{text}\" is not {what}"), None);
        }
        value
    }
}

/// `; did you mean "…?"` of the known word that a text is most like; empty when it is like none.
pub fn nearest(text: &str, known: &[&str]) -> String {
    // The likeness costs the product of the lengths, and no word is so long.
    if text.len() > LONGEST {
        return String::new();
    }
    known
        .iter()
        .map(|word| (strsim::jaro_winkler(&text.to_lowercase(), &word.to_lowercase()), word))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map_or_else(String::new, |(_, word)| format!("; did you mean \"{word}\"?"))
}

fn read_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" | "" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

/// A number in decimal or, with `0x`, in hexadecimal.
pub(super) fn read_number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        // from_str_radix takes a sign as well.
        Some(digits) if digits.starts_with(['+', '-']) => None,
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Control characters escaped and the middle of a long text left out: a message is one line of bounded length
/// whatever the file holds.
fn one_line(text: &str) -> String {
    let escape = |part: &str| -> String {
        part.chars()
            .flat_map(|c| {
                let control = c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
                let (escaped, plain) =
                    if control { (Some(c.escape_default()), None) } else { (None, Some(c)) };
                escaped.into_iter().flatten().chain(plain)
            })
            .collect()
    };
    let ends = text.char_indices().nth(SHOWN).and_then(|_| {
        let (first, _) = text.char_indices().nth(SHOWN / 2)?;
        let (last, _) = text.char_indices().nth_back(SHOWN / 2 - 1)?;
        text.get(..first).zip(text.get(last..))
    });
    match ends {
        Some((first, last)) => format!("{}…{}", escape(first), escape(last)),
        None => escape(text),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
