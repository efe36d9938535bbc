"""The command line: click commands, one file each. Translates; decides nothing."""
