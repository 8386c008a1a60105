package operator

// ReadEpochs is the statement of Epochs.
var ReadEpochs = readEpochs
