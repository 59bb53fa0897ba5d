package fenced

// The contract with the SQL layer, each fact once. A test compares every one of them with the installed schema.

// How a token's 63 bits are split.
const (
	// SeqBits is the number of low bits that hold the source's counter.
	SeqBits = 48
	// EpochBits is the number of bits above them that hold the source's epoch.
	EpochBits = 15
	// MaxSeq is the greatest counter a token can hold.
	MaxSeq = 1<<SeqBits - 1
	// MaxEpoch is the greatest epoch a token can hold.
	MaxEpoch = 1<<EpochBits - 1
)

// The SQLSTATEs with which the guards refuse. Class ZF is in the range that the SQL standard leaves to applications.
const (
	SQLStateStale        = "ZF001" // the token is older than the fence
	SQLStateUnfenced     = "ZF002" // no token was presented
	SQLStateInvalidToken = "ZF003" // not a number, not positive, or beyond max_advance
	SQLStateUnclaimed    = "ZF004" // the token is newer than the named fence
	SQLStateUnsupported  = "ZF005" // not possible under a row fence, for example TRUNCATE
)

// Names that the SQL layer uses.
const (
	// SchemaName is the schema of the SQL layer.
	SchemaName = "fencing"
	// ColumnName is the column of a row fence, a bigint.
	ColumnName = "last_fencing_token"
	// SettingToken is the transaction-local setting behind fencing.present(token): a decimal number.
	SettingToken = "fencing.token"
	// SettingTokens is the transaction-local setting behind fencing.present(token, fence): a JSON object, fence to token.
	SettingTokens = "fencing.tokens"
	// SettingBypass is the transaction-local setting behind fencing.bypass(reason).
	SettingBypass = "fencing.bypass"
	// ChannelLease is the LISTEN/NOTIFY channel that says a lease was released; the payload is its name.
	ChannelLease = "fencing_lease"
)
