//! Many lists to one: the items of all upstreams under public names, and back to their owners. Pure.
//!
//! A merged list keeps every item byte for byte but for its name. Order: upstreams as the route lists
//! them, items as their upstream lists them. Nothing depends on when a list arrived.

mod merge;
mod names;
mod page;
mod template;

pub use merge::{Clash, Merged, Origin, PAGE_ITEMS, Source, Upkeep, merge};
pub use names::{Naming, PublicName};
pub use page::{Hints, Item, Listing, PageError, parse_page};
pub use template::TemplateMatcher;
