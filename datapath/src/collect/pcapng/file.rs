//! One file, compressed or not. In: whole blocks. Out: a file that ends with a whole block, also when the disk is full.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::write::GzEncoder;

/// How files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip, as tshark and capinfos read it.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// Counts what reaches the file.
struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.bytes += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

enum Form {
    Plain(Counted),
    Gzip(GzEncoder<Counted>),
    Zstd(zstd::Encoder<'static, Counted>),
}

/// An open file.
pub(super) struct Output {
    form: Form,
    /// A compressor that failed cannot go on: its file ends where it was cut.
    broken: bool,
}

impl Output {
    pub(super) fn create(path: &Path, compression: Compression) -> io::Result<Self> {
        let counted = Counted { file: File::create(path)?, bytes: 0 };
        let form = match compression {
            Compression::None => Form::Plain(counted),
            // The fastest level: the next one costs twice the time for a tenth of the size.
            Compression::Gzip => Form::Gzip(GzEncoder::new(counted, flate2::Compression::fast())),
            Compression::Zstd => Form::Zstd(zstd::Encoder::new(counted, 1)?),
        };
        Ok(Self { form, broken: false })
    }

    /// Bytes of the file; a compressor keeps some back.
    pub(super) fn bytes(&self) -> u64 {
        match &self.form {
            Form::Plain(counted) => counted.bytes,
            Form::Gzip(encoder) => encoder.get_ref().bytes,
            Form::Zstd(encoder) => encoder.get_ref().bytes,
        }
    }

    /// Writes whole blocks: all of them or, in a file that is not compressed, none.
    pub(super) fn write(&mut self, blocks: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("the compressed file is cut since an earlier error"));
        }
        let written = match &mut self.form {
            Form::Plain(counted) => {
                let before = counted.bytes;
                return counted.write_all(blocks).inspect_err(|_| {
                    // What is there of a block that is cut would make the file unreadable. Not all files can seek.
                    let _ = counted.file.set_len(before);
                    let _ = counted.file.seek(SeekFrom::Start(before));
                    counted.bytes = before;
                });
            }
            Form::Gzip(encoder) => encoder.write_all(blocks),
            Form::Zstd(encoder) => encoder.write_all(blocks),
        };
        self.broken = written.is_err();
        written
    }

    pub(super) fn finish(self) -> io::Result<()> {
        let closed = match self.form {
            Form::Plain(mut counted) => counted.flush(),
            Form::Gzip(encoder) => encoder.finish().map(drop),
            Form::Zstd(encoder) => encoder.finish().map(drop),
        };
        // The reason has been told.
        if self.broken { Ok(()) } else { closed }
    }
}
