//! How a call finds its side: by which way it concerns.

/// A call of the side whose route of `peer` is far, or of the near one.
macro_rules! by {
    ($way:ident, [$($reference:tt)+] $self:ident, $peer:ident, $it:ident => $call:expr) => {
        match $($reference)+ $self.far {
            Some(far) if far.route($peer).$way == Some(Side::Far) => {
                let $it = $($reference)+ far.transport;
                $call
            }
            _ => {
                let $it = $($reference)+ $self.near;
                $call
            }
        }
    };
}

/// A call of the side that `peer`'s packets leave by.
macro_rules! leaves {
    (&mut $($rest:tt)+) => { by!(send, [&mut] $($rest)+) };
    (&$($rest:tt)+) => { by!(send, [&] $($rest)+) };
}

/// The same, and what that side has sent.
macro_rules! leaving {
    ($self:ident, $peer:ident, $it:ident => $call:expr) => {
        match &mut $self.far {
            Some(far) if far.route($peer).send == Some(Side::Far) => {
                let $it = &mut far.transport;
                ($call, &mut far.sent)
            }
            _ => {
                let $it = &mut $self.near;
                ($call, &mut $self.near_sent)
            }
        }
    };
}

/// A call of the side that `peer`'s packets come by.
macro_rules! comes {
    (&mut $($rest:tt)+) => { by!(receive, [&mut] $($rest)+) };
    (&$($rest:tt)+) => { by!(receive, [&] $($rest)+) };
}

pub(super) use {by, comes, leaves, leaving};
