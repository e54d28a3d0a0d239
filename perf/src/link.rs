//! The control channel between rank 0 and another rank: framed JSON over a
//! socket. Ranks sleep on it between measurements; no wait is unbounded.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longer frames are refused: nothing that ranks say comes near.
const FRAME_BYTES_MAX: u32 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the other rank is gone (its control connection closed)")]
    Closed,
    #[error("the other rank has not answered for {0} s")]
    Silent(u64),
    #[error(
        "the other rank announced a message of {0} bytes: is it a kestrel-perf of this version?"
    )]
    TooLong(u32),
    #[error("the other rank said something that this version does not understand: {0}")]
    Garbled(#[from] serde_json::Error),
    #[error("the control connection failed: {0}")]
    Socket(#[source] std::io::Error),
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// One end of a control channel.
pub struct Link {
    stream: Stream,
}

impl From<UnixStream> for Link {
    fn from(stream: UnixStream) -> Link {
        Link { stream: Stream::Unix(stream) }
    }
}

impl From<TcpStream> for Link {
    fn from(stream: TcpStream) -> Link {
        Link { stream: Stream::Tcp(stream) }
    }
}

impl Link {
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), LinkError> {
        let body = serde_json::to_vec(message)?;
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend(body);
        let sent = match &mut self.stream {
            Stream::Unix(stream) => stream.write_all(&frame),
            Stream::Tcp(stream) => stream.write_all(&frame),
        };
        sent.map_err(|error| explain(error, 0))
    }

    /// Waits at most `limit` for the next message, all of it.
    pub fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, LinkError> {
        self.receive_up_to(FRAME_BYTES_MAX, limit)
    }

    /// As [`Self::receive`], where a message of more bytes is refused.
    pub fn receive_up_to<T: DeserializeOwned>(
        &mut self,
        bytes_max: u32,
        limit: Duration,
    ) -> Result<T, LinkError> {
        let (began, mut header) = (Instant::now(), [0; 4]);
        self.read(&mut header, began, limit)?;
        let len = u32::from_le_bytes(header);
        if len > bytes_max {
            return Err(LinkError::TooLong(len));
        }
        let mut body = vec![0; len as usize];
        self.read(&mut body, began, limit)?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// All of `bytes`, within the time: who sends one now and then does not begin it anew.
    fn read(
        &mut self,
        mut bytes: &mut [u8],
        began: Instant,
        limit: Duration,
    ) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(LinkError::Silent(limit.as_secs()));
            }
            match self.read_some(bytes, left) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(explain(error, limit.as_secs())),
            }
        }
        Ok(())
    }

    fn read_some(&mut self, bytes: &mut [u8], limit: Duration) -> std::io::Result<usize> {
        match &mut self.stream {
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(limit)).and_then(|()| stream.read(bytes))
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(limit)).and_then(|()| stream.read(bytes))
            }
        }
    }
}

fn explain(error: std::io::Error, waited_s: u64) -> LinkError {
    use std::io::ErrorKind as Kind;
    match error.kind() {
        Kind::UnexpectedEof | Kind::BrokenPipe | Kind::ConnectionReset => LinkError::Closed,
        Kind::WouldBlock | Kind::TimedOut => LinkError::Silent(waited_s),
        _ => LinkError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who sends a byte now and then is not waited for longer than who sends none.
    #[test]
    fn a_drip_ends_with_its_limit() {
        let (mut drips, end) = UnixStream::pair().expect("a pair");
        let dripping = std::thread::spawn(move || {
            while drips.write_all(&[3]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut link = Link::from(end);
        // 0x03030303 bytes are announced: fewer than this limit, and they take a week.
        let found = link.receive_up_to::<u64>(u32::MAX, Duration::from_millis(300));
        assert!(matches!(found, Err(LinkError::Silent(_))), "{found:?}");
        drop(link);
        dripping.join().expect("it ends with its peer");
    }

    #[test]
    fn messages_cross_and_bad_ones_are_named() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let mut raw = a.try_clone().expect("a clone");
        let (mut a, mut b) = (Link::from(a), Link::from(b));
        a.send(&vec![1u64, 2, 3]).expect("sent");
        assert_eq!(b.receive::<Vec<u64>>(Duration::from_secs(1)).expect("received"), [1, 2, 3]);
        assert!(matches!(b.receive::<u64>(Duration::from_millis(10)), Err(LinkError::Silent(_))));
        raw.write_all(&[3, 0, 0, 0, b'?', b'?', b'?']).expect("written");
        assert!(matches!(b.receive::<u64>(Duration::from_secs(1)), Err(LinkError::Garbled(_))));
        raw.write_all(&[0xff; 4]).expect("written");
        assert!(matches!(b.receive::<u64>(Duration::from_secs(1)), Err(LinkError::TooLong(_))));
        raw.write_all(&[200, 0, 0, 0]).expect("written");
        assert!(matches!(
            b.receive_up_to::<u64>(100, Duration::from_secs(1)),
            Err(LinkError::TooLong(200))
        ));
        drop((a, raw));
        assert!(matches!(b.receive::<u64>(Duration::from_secs(1)), Err(LinkError::Closed)));
    }
}
