//! A frame under judgement.

/// What was said of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on as it is.
    #[default]
    Pass,
    /// It ends here.
    Drop,
    /// It goes on as it is now; podwire completes its checksums.
    Changed,
}

/// A frame under judgement, from its Ethernet header on.
#[derive(Debug)]
pub struct Inspected<'a> {
    bytes: &'a mut [u8],
    changed: bool,
    discarded: bool,
    replaced: Option<Vec<u8>>,
}

impl<'a> Inspected<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, changed: false, discarded: false, replaced: None }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.replaced.as_deref().unwrap_or(self.bytes)
    }

    /// It goes on. What was changed stays changed.
    pub fn pass(&mut self) {
        self.discarded = false;
    }

    /// It ends here.
    pub fn discard(&mut self) {
        self.discarded = true;
    }

    /// Its bytes, to change in place. Checksums are podwire's to complete.
    pub fn change(&mut self) -> &mut [u8] {
        self.changed = true;
        match &mut self.replaced {
            Some(bytes) => bytes,
            None => self.bytes,
        }
    }

    /// Other bytes in its place, longer or shorter, with their own length fields. More than the port's longest frame
    /// is refused: the frame is then dropped and counted.
    pub fn replace(&mut self, bytes: Vec<u8>) {
        self.changed = true;
        self.replaced = Some(bytes);
    }

    /// What was said of it.
    pub fn verdict(&self) -> Verdict {
        match (self.discarded, self.changed) {
            (true, _) => Verdict::Drop,
            (false, true) => Verdict::Changed,
            (false, false) => Verdict::Pass,
        }
    }

    pub(super) fn into_parts(self) -> (Verdict, Option<Vec<u8>>) {
        (self.verdict(), self.replaced)
    }
}
