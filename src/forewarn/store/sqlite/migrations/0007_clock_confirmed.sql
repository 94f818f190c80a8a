-- What an operator confirmed is kept, so that whoever notices it late does not hold the clock again.
ALTER TABLE clock_hold ADD COLUMN confirmed TEXT;
