print("what the head has")
