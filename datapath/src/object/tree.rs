//! YAML as a tree whose values know their places. In: text. Out: one [`Tree`] per document.

use std::collections::BTreeSet;

use granit_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::Value as Json;

use super::{MAX_TEXT, ObjectErrorKind};

/// Nesting that is followed.
pub(super) const MAX_DEPTH: usize = 16;

/// Where a value stands, from 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    place: Place,
    value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Tree>),
    Map(Vec<(String, Place, Tree)>),
}

/// Why a text is no tree.
pub(super) struct Malformed {
    pub(super) kind: ObjectErrorKind,
    pub(super) place: Place,
    pub(super) problem: String,
}

impl Malformed {
    fn syntax(place: Place, problem: &str) -> Self {
        Self { kind: ObjectErrorKind::Syntax, place, problem: problem.to_owned() }
    }
}

impl Tree {
    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// An empty document or a plain `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// The tree as data, for printing it again.
    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, _, value)| (key.clone(), value.to_json())).collect())
            }
            Value::Scalar { text, plain: false } => Json::String(text.clone()),
            Value::Scalar { text, plain: true } => match text.as_str() {
                "" | "~" | "null" => Json::Null,
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                _ => match text.parse::<i64>() {
                    // A label 007 stays one.
                    Ok(number) if number.to_string() == *text => Json::from(number),
                    _ => Json::String(text.clone()),
                },
            },
        }
    }
}

/// Reads all documents.
pub(super) fn read(text: &str) -> Result<Vec<Tree>, Malformed> {
    if text.len() > MAX_TEXT {
        let problem = format!("the text has {} bytes; at most {MAX_TEXT} are read", text.len());
        return Err(Malformed { kind: ObjectErrorKind::Limit, place: Place { line: 1, column: 1 }, problem });
    }
    let mut reader = Reader { parser: Parser::new_from_str(text) };
    let mut documents = Vec::new();
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(documents),
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => documents.push(reader.value(event, &span, 0)?),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Malformed> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(next)) => return Ok(next),
                Some(Err(error)) => {
                    let marker = error.marker();
                    let place = Place { line: marker.line(), column: marker.col() + 1 };
                    return Err(Malformed::syntax(place, &error.info()));
                }
                None => return Ok((Event::StreamEnd, Span::default())),
            }
        }
    }

    fn value(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Tree, Malformed> {
        let place = Place { line: span.start.line(), column: span.start.col() + 1 };
        let refuse = |problem: &str| Err(Malformed::syntax(place, problem));
        if depth > MAX_DEPTH {
            let problem = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(Malformed { kind: ObjectErrorKind::Limit, place, problem });
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                Value::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            Event::Alias(..) => return refuse("aliases (*name) are not read; write the value out"),
            _ => return refuse("a value is expected here"),
        };
        Ok(Tree { place, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Tree>, Malformed> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.value(event, &span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, Place, Tree)>, Malformed> {
        let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(entries);
            }
            let key = self.value(event, &span, depth + 1)?;
            let Value::Scalar { text, .. } = key.value else {
                return Err(Malformed::syntax(key.place, "a field name is expected here"));
            };
            if !names.insert(text.clone()) {
                return Err(Malformed::syntax(key.place, &format!("field {text} stands here twice")));
            }
            let (event, span) = self.next()?;
            let value = self.value(event, &span, depth + 1)?;
            entries.push((text, key.place, value));
        }
    }
}
