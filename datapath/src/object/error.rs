//! Mistakes in objects: one line each.

use std::fmt;

/// What kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectErrorKind {
    /// The text is not YAML.
    Syntax,
    /// The text is too large or too deep.
    Limit,
    /// A field that is not known.
    UnknownField,
    /// A field that must be there is not.
    MissingField,
    /// A value out of its range, of the wrong type, or not among those allowed.
    Value,
    /// Fields that contradict each other.
    Contradiction,
}

/// A mistake: where, in what, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectError {
    pub(super) kind: ObjectErrorKind,
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) object: String,
    pub(super) field: String,
    pub(super) problem: String,
    pub(super) allowed: Option<String>,
}

impl ObjectError {
    /// What kind of mistake.
    pub const fn kind(&self) -> ObjectErrorKind {
        self.kind
    }

    /// The file, as it was named to the parser.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Line, from 1 on.
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Column, from 1 on.
    pub const fn column(&self) -> usize {
        self.column
    }

    /// `Kind/name`, empty where that is unknown.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Path of the field, empty for the object as a whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong, without place and field.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// What is allowed, where that can be said.
    pub fn allowed(&self) -> Option<&str> {
        self.allowed.as_deref()
    }
}

/// `FILE:LINE:COLUMN: Kind/name: field: problem; allowed: …`
impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.problem)?;
        match &self.allowed {
            // What was asked ("did you mean …?") ends with its own sign.
            Some(allowed) if self.problem.ends_with('?') => write!(f, " allowed: {allowed}"),
            Some(allowed) => write!(f, "; allowed: {allowed}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ObjectError {}

/// The mistakes of a file, in its order; never empty, at most 1,000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub(super) Vec<ObjectError>);

impl Errors {
    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &ObjectError> {
        self.0.iter()
    }
}

/// A line each.
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
