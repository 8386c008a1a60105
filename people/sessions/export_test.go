package sessions

// TrustFor is how long a node trusts sessions without reading which have ended.
const TrustFor = trustFor
