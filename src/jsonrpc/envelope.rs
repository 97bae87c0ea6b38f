//! What the scanner notes of one message: which keys matter where, and where their values stand.

use smallvec::SmallVec;

use super::{Member, Span};

/// A member of the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Field {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
}

impl Field {
    const COUNT: usize = Self::Error as usize + 1;

    /// The field with exactly this (decoded) name.
    #[inline]
    fn named(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"jsonrpc" => Self::Jsonrpc,
            b"id" => Self::Id,
            b"method" => Self::Method,
            b"params" => Self::Params,
            b"result" => Self::Result,
            b"error" => Self::Error,
            _ => return None,
        })
    }
}

/// A value that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) member: Member,
    pub(super) span: Span,
}

/// The noted members; eight are what a modern `tools/call` has.
pub(super) type Members = SmallVec<[Noted; 8]>;

/// Envelope members that another reader could take differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// The member stands there twice.
    Duplicate(Field),
    /// A member equals this one except for case.
    Alias(Field),
}

/// What the walk over one object found. Spans count from the object's first byte.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    fields: [Span; Field::COUNT],
    /// Members below the envelope.
    pub(super) members: Members,
    /// The first clash in the envelope.
    pub(super) clash: Option<Clash>,
    /// Whether a clash concerns the id, which then cannot be echoed.
    pub(super) id_clash: bool,
    /// The first member of `params`, `_meta` or `ref` that stands there twice or beside an alias.
    pub(super) ambiguous: Option<Member>,
    /// Aliases that were seen, by [`alias_bit`].
    aliases: u8,
}

impl Envelope {
    /// Where a field's value stands; empty when it is absent.
    #[inline]
    pub(super) fn field(&self, field: Field) -> Span {
        self.fields[field as usize]
    }

    fn has(&self, member: Member) -> bool {
        self.members.iter().any(|noted| noted.member == member)
    }

    /// A field's key was read: it must be the first of its name.
    #[inline]
    fn open_field(&mut self, field: Field) {
        if self.fields[field as usize] != Span::default() {
            self.clash(Clash::Duplicate(field), field);
        }
    }

    #[cold]
    fn clash(&mut self, clash: Clash, field: Field) {
        self.clash.get_or_insert(clash);
        self.id_clash |= field == Field::Id;
    }

    /// A member's key was read. When it stands there twice, the last one counts, and what was
    /// noted inside the first is forgotten.
    #[inline]
    fn open_member(&mut self, member: Member) {
        if self.has(member) {
            self.reopen_member(member);
        }
    }

    #[cold]
    fn reopen_member(&mut self, member: Member) {
        if member.in_params() {
            self.ambiguous.get_or_insert(member);
        }
        self.members
            .retain(|noted| noted.member != member && noted.member.parent() != Some(member));
    }

    /// Settles what can only be known at the end: a member beside its alias.
    pub(super) fn finish(&mut self) {
        if self.aliases == 0 || self.ambiguous.is_some() {
            return;
        }
        self.ambiguous = ALIASED
            .into_iter()
            .find(|&member| self.aliases & alias_bit(member) != 0 && self.has(member));
    }
}

/// Members whose aliases in other case are noted.
const ALIASED: [Member; 4] = [Member::Name, Member::Uri, Member::RefName, Member::RefUri];

fn alias_bit(member: Member) -> u8 {
    ALIASED.iter().position(|&aliased| aliased == member).map_or(0, |index| 1 << index)
}

/// An object whose members are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Message,
    Params,
    Ref,
    Meta,
    Result,
    Error,
}

/// What a key means in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Field(Field),
    Member(Member),
    Other,
}

impl Slot {
    #[inline]
    fn of(role: Role, key: &[u8]) -> Self {
        let member = match role {
            Role::Message => return Field::named(key).map_or(Self::Other, Self::Field),
            Role::Params => params_member(key),
            Role::Ref => ref_member(key),
            Role::Meta => meta_member(key),
            Role::Result => result_member(key),
            Role::Error => (key == b"code").then_some(Member::ErrorCode),
        };
        member.map_or(Self::Other, Self::Member)
    }

    /// The role of the object that stands at this key.
    #[inline]
    pub(super) fn inner(self) -> Option<Role> {
        match self {
            Self::Field(Field::Params) => Some(Role::Params),
            Self::Field(Field::Result) => Some(Role::Result),
            Self::Field(Field::Error) => Some(Role::Error),
            Self::Member(Member::Meta) => Some(Role::Meta),
            Self::Member(Member::Ref) => Some(Role::Ref),
            Self::Field(_) | Self::Member(_) | Self::Other => None,
        }
    }
}

#[inline]
fn params_member(key: &[u8]) -> Option<Member> {
    Some(match key {
        b"name" => Member::Name,
        b"uri" => Member::Uri,
        b"cursor" => Member::Cursor,
        b"arguments" => Member::Arguments,
        b"_meta" => Member::Meta,
        b"progressToken" => Member::ProgressToken,
        b"requestId" => Member::RequestId,
        b"level" => Member::Level,
        b"taskId" => Member::TaskId,
        b"task" => Member::Task,
        b"requestState" => Member::RequestState,
        b"inputResponses" => Member::InputResponses,
        b"protocolVersion" => Member::ProtocolVersion,
        b"capabilities" => Member::Capabilities,
        b"clientInfo" => Member::ClientInfo,
        b"ref" => Member::Ref,
        _ => return None,
    })
}

fn ref_member(key: &[u8]) -> Option<Member> {
    match key {
        b"name" => Some(Member::RefName),
        b"uri" => Some(Member::RefUri),
        _ => None,
    }
}

fn meta_member(key: &[u8]) -> Option<Member> {
    Some(match key {
        b"progressToken" => Member::MetaProgressToken,
        b"io.modelcontextprotocol/protocolVersion" => Member::MetaProtocolVersion,
        b"io.modelcontextprotocol/clientCapabilities" => Member::MetaClientCapabilities,
        b"io.modelcontextprotocol/clientInfo" => Member::MetaClientInfo,
        b"io.modelcontextprotocol/logLevel" => Member::MetaLogLevel,
        b"traceparent" => Member::MetaTraceparent,
        _ => return None,
    })
}

#[inline]
fn result_member(key: &[u8]) -> Option<Member> {
    match key {
        b"isError" => Some(Member::IsError),
        b"nextCursor" => Some(Member::NextCursor),
        b"resultType" => Some(Member::ResultType),
        _ => None,
    }
}

/// Keys longer than this are no aliases: `jsonrpc` with a long s, with room.
const LONGEST_ALIAS: usize = 16;

/// Keys longer than this, escapes included, equal no known one.
const LONGEST_KEY: usize = 6 * b"io.modelcontextprotocol/clientCapabilities".len();

impl Envelope {
    /// A key was read (`quoted`, with its quotes): says what it means, and notes when it clashes.
    #[inline]
    pub(super) fn open(&mut self, role: Role, quoted: &[u8]) -> Slot {
        let key = &quoted[1..quoted.len() - 1];
        match self.open_decoded(role, key) {
            // Known keys have no escapes.
            Slot::Other if key.contains(&b'\\') => self.open_escaped(role, quoted),
            slot => slot,
        }
    }

    #[cold]
    fn open_escaped(&mut self, role: Role, quoted: &[u8]) -> Slot {
        if quoted.len() > LONGEST_KEY {
            return Slot::Other;
        }
        match serde_json::from_slice::<String>(quoted) {
            Ok(key) => self.open_decoded(role, key.as_bytes()),
            // A lone surrogate equals no known name.
            Err(_) => Slot::Other,
        }
    }

    #[inline]
    fn open_decoded(&mut self, role: Role, key: &[u8]) -> Slot {
        let slot = Slot::of(role, key);
        match slot {
            Slot::Field(field) => self.open_field(field),
            Slot::Member(member) => self.open_member(member),
            Slot::Other => self.open_other(role, key),
        }
        slot
    }

    /// An unknown key: it may be an alias of a known one.
    #[inline]
    fn open_other(&mut self, role: Role, key: &[u8]) {
        if key.len() > LONGEST_ALIAS || !matches!(role, Role::Message | Role::Params | Role::Ref) {
            return;
        }
        let folded = fold(key);
        match Slot::of(role, &folded) {
            Slot::Field(field) => self.clash(Clash::Alias(field), field),
            Slot::Member(member) => self.aliases |= alias_bit(member),
            Slot::Other => {}
        }
    }

    /// The value behind a key was read.
    #[inline]
    pub(super) fn close(&mut self, slot: Slot, span: Span) {
        match slot {
            Slot::Field(field) => self.fields[field as usize] = span,
            Slot::Member(member) => self.members.push(Noted { member, span }),
            Slot::Other => {}
        }
    }
}

/// The key as readers without regard to case see it. One letter outside of ASCII folds into the
/// names that are asked for: U+017F, the long s.
fn fold(key: &[u8]) -> SmallVec<[u8; LONGEST_ALIAS]> {
    let mut folded = SmallVec::new();
    let mut rest = key;
    while let Some((&first, tail)) = rest.split_first() {
        rest = match rest {
            [0xC5, 0xBF, tail @ ..] => {
                folded.push(b's');
                tail
            }
            _ => {
                folded.push(first.to_ascii_lowercase());
                tail
            }
        };
    }
    folded
}
