//! One file, compressed or not. In: whole blocks. Out: a file that ends with a whole block, also when the disk is full.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
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
    /// Whether it holds nothing but what is written here.
    own: bool,
}

impl Counted {
    /// Opened anew, standard output would lose what others have put there, and a socket cannot be opened at all.
    fn open(path: &Path) -> io::Result<Self> {
        let own = path != Path::new("/dev/stdout");
        let file = if own { File::create(path)? } else { io::stdout().as_fd().try_clone_to_owned()?.into() };
        Ok(Self { file, bytes: 0, own })
    }

    /// Takes away what is there of a block that is cut; `false` where that is not possible.
    fn cut(&mut self, bytes: u64) -> bool {
        if self.bytes == bytes {
            return true;
        }
        if !self.own || self.file.set_len(bytes).is_err() || self.file.seek(SeekFrom::Start(bytes)).is_err() {
            return false;
        }
        self.bytes = bytes;
        true
    }
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
    /// A compressor that failed cannot go on, nor a pipe that has a part of a block: it ends where it was cut.
    broken: bool,
}

impl Output {
    pub(super) fn create(path: &Path, compression: Compression) -> io::Result<Self> {
        let counted = Counted::open(path)?;
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
            return Err(io::Error::other("the output is cut since an earlier error"));
        }
        let written = match &mut self.form {
            Form::Plain(counted) => {
                let before = counted.bytes;
                let written = counted.write_all(blocks);
                self.broken = written.is_err() && !counted.cut(before);
                return written;
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_pipe_with_a_part_of_a_block_gets_no_more() -> io::Result<()> {
        let (reader, writer) = std::os::unix::net::UnixStream::pair()?;
        writer.set_nonblocking(true)?;
        let file = File::from(OwnedFd::from(writer));
        let mut output = Output { form: Form::Plain(Counted { file, bytes: 0, own: true }), broken: false };
        assert!(output.write(&vec![0; 8 << 20]).is_err() && output.bytes() > 0 && output.broken);
        drop(reader);
        let again = output.write(&[0]).map_err(|error| error.to_string());
        assert_eq!(again, Err("the output is cut since an earlier error".into()));
        Ok(())
    }
}
