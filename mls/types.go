package mls

import (
	"encoding/hex"
	"strconv"
)

// ProtocolVersion is the MLS version (RFC 9420 §6).
type ProtocolVersion uint16

// VersionMLS10 is the only version.
const VersionMLS10 ProtocolVersion = 1

// WireFormat says what an MLSMessage contains (RFC 9420 §17.2).
type WireFormat uint16

// The wire formats of RFC 9420.
const (
	WireFormatPublicMessage  WireFormat = 1
	WireFormatPrivateMessage WireFormat = 2
	WireFormatWelcome        WireFormat = 3
	WireFormatGroupInfo      WireFormat = 4
	WireFormatKeyPackage     WireFormat = 5
)

// String returns the struct's name in the RFC, or the number.
func (w WireFormat) String() string {
	switch w {
	case WireFormatPublicMessage:
		return "PublicMessage"
	case WireFormatPrivateMessage:
		return "PrivateMessage"
	case WireFormatWelcome:
		return "Welcome"
	case WireFormatGroupInfo:
		return "GroupInfo"
	case WireFormatKeyPackage:
		return "KeyPackage"
	}
	return strconv.Itoa(int(w))
}

// ContentType says what a framed message contains (RFC 9420 §6).
type ContentType uint8

// The content types of RFC 9420.
const (
	ContentTypeApplication ContentType = 1
	ContentTypeProposal    ContentType = 2
	ContentTypeCommit      ContentType = 3
)

// String returns the RFC's name, or the number.
func (c ContentType) String() string {
	switch c {
	case ContentTypeApplication:
		return "application"
	case ContentTypeProposal:
		return "proposal"
	case ContentTypeCommit:
		return "commit"
	}
	return strconv.Itoa(int(c))
}

// SenderType says what kind of sender sent a PublicMessage (RFC 9420 §6).
type SenderType uint8

// The sender types of RFC 9420. A PrivateMessage has the sender type 0, because its sender is
// encrypted.
const (
	SenderTypeMember            SenderType = 1
	SenderTypeExternal          SenderType = 2
	SenderTypeNewMemberProposal SenderType = 3
	SenderTypeNewMemberCommit   SenderType = 4
)

// String returns the RFC's name, or the number.
func (s SenderType) String() string {
	switch s {
	case SenderTypeMember:
		return "member"
	case SenderTypeExternal:
		return "external"
	case SenderTypeNewMemberProposal:
		return "new_member_proposal"
	case SenderTypeNewMemberCommit:
		return "new_member_commit"
	}
	return strconv.Itoa(int(s))
}

// CredentialType says how a leaf identifies its owner (RFC 9420 §17.5).
type CredentialType uint16

// The credential types of RFC 9420.
const (
	CredentialTypeBasic CredentialType = 1
	CredentialTypeX509  CredentialType = 2
)

// String returns the type's name in RFC 9420.
func (t CredentialType) String() string {
	switch t {
	case CredentialTypeBasic:
		return "basic"
	case CredentialTypeX509:
		return "x509"
	}
	return strconv.Itoa(int(t))
}

// ExtensionType is a code point of RFC 9420 §17.3.
type ExtensionType uint16

// The extension types that this package knows. Last resort is from
// draft-ietf-mls-extensions.
const (
	ExtensionApplicationID        ExtensionType = 0x0001
	ExtensionRatchetTree          ExtensionType = 0x0002
	ExtensionRequiredCapabilities ExtensionType = 0x0003
	ExtensionExternalPub          ExtensionType = 0x0004
	ExtensionExternalSenders      ExtensionType = 0x0005
	ExtensionLastResort           ExtensionType = 0x000A
)

// isDefault reports whether every client supports t without listing it (§7.2).
func (t ExtensionType) isDefault() bool {
	return t >= ExtensionApplicationID && t <= ExtensionExternalSenders
}

// KeyPackageRef is the hash that identifies a KeyPackage in a Welcome (RFC 9420 §5.2).
type KeyPackageRef []byte

// String returns lower-case hexadecimal.
func (r KeyPackageRef) String() string { return hex.EncodeToString(r) }
