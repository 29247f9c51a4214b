//! Models on disk: bringing them there ([`pull`]), finding them ([`catalogue`]), checking weights that are seen for the first time
//! ([`trial`]), the files that components see of them ([`files`]), and telling people of them ([`listing`]).

pub mod catalogue;
pub mod files;
pub mod listing;
pub mod pull;
pub mod stamps;
pub mod trial;
