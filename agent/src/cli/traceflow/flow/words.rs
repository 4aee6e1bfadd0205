//! The items of a flow. In: text. Out: words and `KEY=VALUE` pairs, each with its column.

use super::FlowError;

/// A word, or a key and its value.
#[derive(Debug)]
pub struct Item<'a> {
    /// Column of the key, from 1 on.
    pub column: usize,
    /// The word.
    pub key: &'a str,
    /// What stands behind "=", and its column.
    pub value: Option<(usize, &'a str)>,
}

impl Item<'_> {
    /// Something is wrong with it.
    pub fn wrong(&self, problem: String) -> FlowError {
        FlowError { column: self.column, problem }
    }
}

/// Splits a text; nothing is known yet of what the words mean.
pub fn split(text: &str) -> Result<Vec<Item<'_>>, FlowError> {
    let (mut items, mut at): (Vec<Item>, usize) = (Vec::new(), 0);
    let mut after_comma = true;
    loop {
        at = skip_space(text, at);
        let Some(next) = text.get(at..).and_then(|rest| rest.chars().next()) else {
            break;
        };
        match next {
            ',' if after_comma => return Err(wrong(text, at, "a word is expected before the comma")),
            ',' => {
                after_comma = true;
                at += 1;
                continue;
            }
            '=' => return Err(wrong(text, at, "a word is expected before \"=\"")),
            _ => {}
        }
        let start = at;
        at = end_of(text, at, |c| c == ',' || c == '=' || c.is_whitespace());
        let mut item =
            Item { column: column(text, start), key: text.get(start..at).unwrap_or_default(), value: None };
        let equals = skip_space(text, at);
        if text.get(equals..).is_some_and(|rest| rest.starts_with('=')) {
            let begin = skip_space(text, equals + 1);
            at = end_of(text, begin, |c| c == ',' || c.is_whitespace());
            let value = text.get(begin..at).unwrap_or_default();
            if value.is_empty() {
                return Err(wrong(text, begin, &format!("a value is expected after \"{}=\"", item.key)));
            }
            item.value = Some((column(text, begin), value));
        }
        items.push(item);
        after_comma = false;
    }
    if after_comma && !(items.is_empty() && text.trim().is_empty()) {
        return Err(wrong(text, at, "a word is expected after the comma"));
    }
    Ok(items)
}

fn wrong(text: &str, at: usize, problem: &str) -> FlowError {
    FlowError { column: column(text, at), problem: problem.to_owned() }
}

fn column(text: &str, at: usize) -> usize {
    text.get(..at).map_or(0, |before| before.chars().count()) + 1
}

fn skip_space(text: &str, at: usize) -> usize {
    end_of(text, at, |c| !c.is_whitespace())
}

/// Where the first such character stands, or the end.
fn end_of(text: &str, at: usize, is_end: impl Fn(char) -> bool) -> usize {
    text.get(at..).and_then(|rest| rest.find(is_end)).map_or(text.len(), |length| at + length)
}
