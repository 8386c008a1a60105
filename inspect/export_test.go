package inspect

// ReadEpochs is the statement of Epochs.
var ReadEpochs = readEpochs
