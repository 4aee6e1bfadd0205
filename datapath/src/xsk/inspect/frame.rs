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
    verdict: Verdict,
    replaced: Option<Vec<u8>>,
}

impl<'a> Inspected<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, verdict: Verdict::Pass, replaced: None }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.replaced.as_deref().unwrap_or(self.bytes)
    }

    /// It goes on as it is. What was changed stays changed.
    pub fn pass(&mut self) {
        if self.verdict == Verdict::Drop {
            self.verdict = Verdict::Pass;
        }
    }

    /// It ends here.
    pub fn discard(&mut self) {
        self.verdict = Verdict::Drop;
    }

    /// Its bytes, to change in place. Checksums are podwire's to complete.
    pub fn change(&mut self) -> &mut [u8] {
        self.verdict = Verdict::Changed;
        match &mut self.replaced {
            Some(bytes) => bytes,
            None => self.bytes,
        }
    }

    /// Other bytes in its place, longer or shorter, with their own length fields. More than the port's longest frame
    /// is refused: the frame is then dropped and counted.
    pub fn replace(&mut self, bytes: Vec<u8>) {
        self.verdict = Verdict::Changed;
        self.replaced = Some(bytes);
    }

    /// What was said of it.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(super) fn into_parts(self) -> (Verdict, Option<Vec<u8>>) {
        (self.verdict, self.replaced)
    }
}
