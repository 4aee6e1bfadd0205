//! The library's one error: a stable kind, what was being done, and the cause.

use std::fmt;

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller lacks a capability, usually root.
    PermissionDenied,
    /// This kernel lacks a feature that is needed.
    Unsupported,
    /// A table has no room for what is wanted. Nothing was changed.
    TableFull,
    /// What is wanted contradicts itself. Nothing was changed.
    Invalid,
    /// Another agent holds the same folder.
    Busy,
    /// Pinned objects of another layout or of somebody else are in the way.
    ForeignState,
    /// The kernel refused a call.
    Kernel,
}

/// An error of the library.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), source: None }
    }

    pub(crate) fn caused(
        kind: ErrorKind,
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, what: what.into(), source: Some(source.into()) }
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// One line: what was being done, then the causes.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut cause = self.source.as_ref().map(|source| &**source as &dyn std::error::Error);
        let mut said = self.what.clone();
        while let Some(error) = cause {
            let text = error.to_string().replace('\n', " ");
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<crate::compile::CompileError> for Error {
    fn from(error: crate::compile::CompileError) -> Self {
        Self::caused(ErrorKind::TableFull, "the rules do not fit", error)
    }
}

/// Names the call that failed; permission problems get their own kind.
pub(crate) trait Context<T> {
    /// `what` reads as the start of a sentence: "reading map CONFIG".
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| {
            let denied = is_denied(&error);
            let kind = if denied { ErrorKind::PermissionDenied } else { ErrorKind::Kernel };
            Error::caused(kind, what(), error)
        })
    }
}

fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::PermissionDenied
        {
            return true;
        }
        cause = error.source();
    }
    false
}
